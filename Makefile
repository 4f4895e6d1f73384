# Targets for developers. `make test` runs every test, `make check` every lint. Both install what they need.

CARGO ?= cargo
FUZZ_SECONDS ?= 10
export CARGO_TERM_COLOR ?= auto

.PHONY: help test quick check fmt prose lint docs deny advisories shellcheck workflows charts times fuzz soak bench-dns bench-programming bench-client bench-rdma crds clean

# Measures a step, for `make times`.
TIMED := tests/tools/timed.sh

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

test: ## Run every test, with real control planes; lists at its end what passed, failed, was skipped and why
	@tests/run.sh

quick: ## Run the pure tests: no root, no packages but a C compiler, no Go
	$(CARGO) test

check: fmt prose lint docs deny shellcheck workflows charts ## Run every lint

fmt:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --all --manifest-path fuzz/Cargo.toml --check

# Comments, and the order of modules, as CONTRIBUTING.md has them.
prose:
	@tests/tools/prose.sh
	@tests/tools/arrows.sh

# The client library again, without its features: the workspace uses all of them.
lint:
	@tests/tools/packages.sh build
	@$(TIMED) 'clippy' $(CARGO) clippy --workspace --all-targets -- -D warnings
	@$(TIMED) 'clippy without features' $(CARGO) clippy -p multinet-client --lib -- -D warnings

docs:
	@tests/tools/limits.sh
	@tests/bench-page.sh --check
	@RUSTDOCFLAGS='-D warnings' $(TIMED) 'docs' $(CARGO) doc --workspace --no-deps --lib --bins --examples --quiet

deny:
	@command -v cargo-deny >/dev/null || $(TIMED) 'install cargo-deny' $(CARGO) install --debug --locked cargo-deny@0.20.2
	$(CARGO) deny --log-level error check licenses bans sources

advisories: ## Check the dependencies against the RustSec database (downloads it)
	@command -v cargo-deny >/dev/null || $(CARGO) install --debug --locked cargo-deny@0.20.2
	$(CARGO) deny check advisories

shellcheck:
	@tests/tools/packages.sh shellcheck
	shellcheck tests/*.sh tests/tools/*.sh deploy/helm/*.sh .ci/run

charts:
	@deploy/helm/copy.sh --check

workflows:
	@$$(tests/tools/actionlint.sh)

times: ## Measure `make check` and `make test` by phase and test binary, cold and warm
	@tests/times.sh

fuzz: ## Fuzz every parser of outside bytes, FUZZ_SECONDS each
	@tests/fuzz.sh $(FUZZ_SECONDS)

soak: ## Run the tests that take long, and those with a million endpoints, with their figures into docs/benchmarks.md
	@tests/soak.sh

bench-dns: ## Compare what an answer costs with Knot, NSD, CoreDNS and a bare echo, into docs/benchmarks.md
	@tests/bench-run.sh $@

bench-programming: ## Compare the way from pod to answer with that of Kubernetes itself, into docs/benchmarks.md
	@tests/bench-run.sh $@

bench-client: ## Compare the client library with iperf3 and UCX over TCP, into docs/benchmarks.md
	@tests/bench-run.sh $@

bench-rdma: ## Compare the client library by RDMA with perftest and UCX, over soft-RoCE, into docs/benchmarks.md
	@tests/bench-run.sh $@

crds: ## Generate deploy/crds anew, and what the charts have of the manifests
	UPDATE=1 $(CARGO) test --quiet -p multinet-crds --test it manifests::
	deploy/helm/copy.sh

clean:
	$(CARGO) clean
