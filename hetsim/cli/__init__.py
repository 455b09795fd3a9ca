"""The commands of hetsim: argparse and one call each."""
