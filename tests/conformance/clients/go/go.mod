module multinet/tests/conformance/clients

go 1.24
