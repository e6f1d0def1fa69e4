"""The command microbench: its subcommands and options."""
