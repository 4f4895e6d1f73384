// Pins the CustomResourceDefinitions of other projects that the examples use.
module multinet/tests/tools/definitions

go 1.26

require (
	github.com/kubeflow/mpi-operator v0.6.0
	github.com/ray-project/kuberay/ray-operator v1.5.0
	sigs.k8s.io/jobset v0.10.1
	sigs.k8s.io/lws v0.7.0
)
