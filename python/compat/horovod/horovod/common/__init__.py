"""horovod.common, by Addend."""
