"""horovod.torch.elastic.sampler, by Addend."""

from addend.torch.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
