"""Three sites on this machine, an application, a reader and two listeners: LR to look at."""
