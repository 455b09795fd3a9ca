"""What the programs keep about ranges, contributions, pools and timings."""
