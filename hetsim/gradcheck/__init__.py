"""What `hetsim-ddp-check` does in the processes of a user's script, and how it compares the gradients of several with those of one."""
