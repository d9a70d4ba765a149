# Doze. On a fresh Debian machine with Go: make run, make test.
# As root, or with sudo installed.

SHELL := /bin/bash
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
GO := go
# The engine is gVisor with a few changes (package patch) and what the launcher makes of
# it. Raise the suffix when
# machines of an earlier release cannot go on in the new one: they keep theirs.
ENGINE := $(shell $(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor)-2
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo dev)
# With TAGS=faults, the steps of sleep and wake can be heard, and harmed.
TAGS ?=
# Nobody profiles an agent: without this, its runtime keeps tables about who
# waited for its locks, in every sandbox.
SMALL := -X runtime.godebugDefault=profstackdepth=0
BIN ?= bin
# The same for all that is compiled, tests and linters included: with another word, the
# compiler would make everything twice.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath,$(shell $(GO) env GOFLAGS)) -trimpath
STATIC := $(GO) build $(if $(TAGS),-tags $(TAGS))
DATA ?= /var/lib/doze
LISTEN ?= 127.0.0.1:7080
ARGS ?=

.PHONY: run build programs engine console room test test-long test-short test-roles images-test measure check race fuzz gen deps deps-test bench-sleep bench-wake bench-create bench-control bench-density bench-egress bench-drive bench-inside bench-build bench-agent bench-roles bench-fleet simulate performance compatibility faults attack soak fleet release chart-test release-test clean help
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## / — /'

run: deps build ## install what is missing, build, start
	$(SUDO) bin/dozed all --data $(DATA) --listen $(LISTEN) $(ARGS)

build: programs ## the five binaries, static, in bin/
	$(STATIC) -ldflags '-s -w -X main.release=$(VERSION)' -o $(BIN)/doze ./cmd/doze
	$(BUILDER) $(GO) build -ldflags '-s -w -X main.version=$(VERSION)' -o $(abspath $(BIN))/doze-builder .

# Those that run sandboxes.
programs: engine
	@mkdir -p $(BIN)
	$(STATIC) -modfile $(CHANGED) -ldflags '-s -w -X gvisor.dev/gvisor/runsc/version.version=$(ENGINE)' -o $(BIN)/doze-sentry ./cmd/doze-sentry
	$(STATIC) -ldflags '-s -w -X main.version=$(VERSION) $(SMALL)' -o $(BIN)/doze-agent ./cmd/doze-agent
	$(STATIC) -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/dozed ./cmd/dozed

# A build, tests and linters with this module compile one gVisor, and not the original one besides.
# The linter takes no module, but a workspace.
CHANGED := bin/engine/go.mod
WORKSPACE := bin/engine/go.work
engine:
	$(GO) run ./internal/machine/gvisor/launcher/patch/apply bin/engine
	@printf 'go %s\n\nuse ../..\n\nreplace gvisor.dev/gvisor => ./gvisor\n' "$$($(GO) list -m -f '{{.GoVersion}}')" >$(WORKSPACE)

console: deps-test ## the page of the platform, from its source: needs node
	cd internal/console/app && npm ci --no-audit --no-fund --loglevel=error && npm run --silent check && npm run --silent build

# The program of builder machines is a module of its own: it links BuildKit.
BUILDER := cd builder &&

# What images are made with; and what the tests need besides.
DEPS := mmdebstrap:mmdebstrap mkfs.erofs:erofs-utils mkfs.ext4:e2fsprogs ip:iproute2
DEPS_TEST := node:nodejs npm:npm curl:curl jq:jq unshare:util-linux initdb:postgresql chromium:chromium httpx:python3-httpx mypy:mypy runc:runc busybox:busybox-static ssh:openssh-client mkfs.xfs:xfsprogs openssl:openssl redis-cli:redis-tools squid:squid
define install
	@missing=""; for d in $(1); do command -v $${d%%:*} >/dev/null || PATH=$$PATH:/usr/sbin:/sbin:$$(echo /usr/lib/postgresql/*/bin | tr " " :) command -v $${d%%:*} >/dev/null || missing="$$missing $${d##*:}"; done; \
	if [ -n "$$missing" ]; then echo "installing:$$missing"; $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; fi
endef
deps: ## install what running needs
	$(call install,$(DEPS))
deps-test: deps
	$(call install,$(DEPS_TEST))
	@test internal/console/app/node_modules/.package-lock.json -nt internal/console/app/package-lock.json || (cd internal/console/app && npm ci --no-audit --no-fund --loglevel=error)
	@test test/e2e/node_modules/.package-lock.json -nt test/e2e/package-lock.json || (cd test/e2e && npm ci --no-audit --no-fund --loglevel=error)

# A test of a real machine can meet a bad moment of its host. One that fails runs once
# more, whole. A test that fails twice has failed; one that passes is named as flaky.
GOTESTSUM := bin/gotestsum --format pkgname-and-test-fails --hide-summary skipped --rerun-fails=1 --rerun-fails-max-failures 12 --rerun-fails-run-root-test
# Two rows of packages run side by side, and take about the same time. With more than two
# packages at once, tests of real sandboxes would fail each other. Those of the builder, with
# their fork bombs, have the machine to themselves.
# A slow machine takes twice as long as a quick one, so the limits are generous.
LONG := ./test/e2e
ALSO := ./internal/machine/gvisor
LAST := ./test/fault
# make check has all of go vet. By itself, go test runs a part of it, for each package and for
# all that it imports.
VETTED := -vet=off
MAIN := $(VETTED) -modfile $(CHANGED)

test: room deps-test build bin/gotestsum ## every test; real sandboxes need root
	$(MAKE) --no-print-directory -j 2 test-long test-short
	$(BUILDER) ../$(GOTESTSUM) --packages ./... -- $(VETTED) -p 1 -timeout 10m
	$(GOTESTSUM) --packages ./test/attack -- $(MAIN) -timeout 20m
test-long:
	$(GOTESTSUM) --packages "$(LONG)" -- $(MAIN) -p 1 -parallel 3 -timeout 60m
	DOZE_TEST_ROLES=1 $(GOTESTSUM) --packages ./test/contract -- $(MAIN) -timeout 20m
	$(GOTESTSUM) --packages "$(ALSO)" -- $(MAIN) -timeout 40m
test-short:
	$(GOTESTSUM) --packages "$$($(GO) list ./... | grep -v -e /test/attack $(patsubst ./%,-e /%\$$,$(LONG) $(ALSO) $(LAST)))" -- $(MAIN) -p 1 -timeout 30m
	$(GOTESTSUM) --packages "$(LAST)" -- $(MAIN) -p 1 -timeout 40m
room: ## remove images of earlier tests, and say whether there is room for more on the disk
	@$(GO) run ./test/room

test-roles: deps-test build bin/gotestsum ## the end-to-end and public-client tests, with control, node and edge as three processes
	DOZE_TEST_ROLES=1 $(GOTESTSUM) --packages "./test/contract ./test/e2e" -- -p 1 -timeout 30m

images-test: deps-test build ## build every image of the catalogue, and check what is in it
	$(GO) test ./test/e2e -run 'TestCatalogue|TestNextJSPreview|TestInterpreter' -catalogue -v -count=1 -timeout 2h

measure: deps-test engine ## what a machine takes to wake, and what its files take: figures, of which none is wrong
	$(GO) test ./internal/machine/gvisor -run 'TestLatency|TestDiskCosts|TestManyFiles' -measure -v -count=1 -timeout 30m

race: deps-test build ## the same with the race detector, without the real sandboxes
	$(call install,gcc:gcc)
	CGO_ENABLED=1 $(GO) test -race -short -p 2 -timeout 20m ./...

# The linter has each check of go vet, by the same code. Where nothing is linted, go vet looks.
check: engine bin/golangci-lint ## vet, lint, generated files
	GOOS=darwin $(GO) vet ./cmd/doze ./client
	GOOS=windows $(GO) vet ./cmd/doze ./client
	$(GO) mod verify >/dev/null
	GOWORK=$(abspath $(WORKSPACE)) bin/golangci-lint run ./...
	$(BUILDER) $(GO) mod verify >/dev/null && ../bin/golangci-lint run ./...

bin/golangci-lint: tools/go.mod tools/go.sum
	@mkdir -p bin
	cd tools && $(GO) build -o ../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/gotestsum: tools/go.mod tools/go.sum
	@mkdir -p bin
	cd tools && $(GO) build -o ../bin/gotestsum gotest.tools/gotestsum

# An S3 server on a directory. Its module is its own, since its dependencies are many: they take
# minutes to build. Tests of the vault skip it where it is not built, and say so.
bin/versitygw: tools/s3/go.mod tools/s3/go.sum
	@mkdir -p bin
	cd tools/s3 && $(GO) build -o ../../bin/versitygw github.com/versity/versitygw/cmd/versitygw

# A release has the version of its tag. Without one, it has the time of its commit, so that a
# package of a later commit replaces that of an earlier one.
RELEASE ?= $(or $(patsubst v%,%,$(shell git describe --tags --exact-match --match 'v*' 2>/dev/null)),0~$(shell TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd.%h 2>/dev/null))
DIST ?= dist
packages = $(foreach d,$(DEPS),$(lastword $(subst :, ,$(d))))
# A tar of a Debian with what dozed needs, for the image. By default, one is made.
BASE ?=
release: ## packages of the binaries in DIST (dist/): .deb, archive, image, Helm chart, bills of materials, checksums, install.sh
	$(MAKE) --no-print-directory build BIN=$(DIST)/bin VERSION=$(RELEASE)
	SOURCE_DATE_EPOCH=$(shell git log -1 --format=%ct) BASE='$(BASE)' packaging/release.sh '$(RELEASE)' '$(DIST)/bin' '$(DIST)/$(RELEASE)' '$(packages)'
	@echo "$(DIST)/$(RELEASE)"
chart-test: ## look at the Helm chart as Helm, Kubernetes and dozed do; the first run compiles Helm
	cd tools/chart && $(GO) test -count=1 .
release-test: deps ## two equal builds; install, upgrade with a running sandbox, remove and purge a package in a fresh Debian; takes about 10 minutes
	$(SUDO) env PATH="$$PATH" $(GO) test ./test/release -make -v -timeout 40m

FUZZTIME ?= 5s
fuzz: ## every fuzz target for FUZZTIME (5s)
	@set -e; grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r f; do \
	  for target in $$(grep -oE '^func Fuzz[A-Za-z0-9_]+' $$f | cut -c6-); do \
	    echo "$$(dirname $$f) $$target"; (cd $$(dirname $$f) && $(GO) test . -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME)); done; done

gen: ## generated code, diagrams and golden files
	$(GO) generate ./...
	$(GO) test . ./cmd/... -update
	$(GO) test ./internal/plane -run Description -update

# Benchmarks print a table; JSON=FILE writes the rows as JSON lines too.
JSON ?=
BENCH := $(SUDO) env PATH="$$PATH" $(GO) run ./test/bench $(if $(JSON),-json $(JSON))
SOAK ?= 10m
FAULTS ?= 300
# With SLEEPS=1000, a soak ends after so many; with SEED, it repeats another one.
SLEEPS ?=
SEED ?=
STEP ?= 250ms
MANY ?= 4
ROUNDS ?=
faults: deps-test ## every fault at every step of sleep and wake: errors, a full disk, kills, cuts of the power
	$(SUDO) $(GO) test ./test/fault -all -timeout 60m
attack: deps-test build ## outsiders, tenants and sandboxes against a victim whose requests are measured; takes about 10 minutes
	$(SUDO) $(GO) test ./test/attack -all -v -timeout 30m
soak: deps-test build ## SOAK (10m) or SLEEPS of sleeping, waking, copying, killing and cutting the power; fails on a wrong byte
	$(SUDO) $(GO) run ./test/soak -for $(SOAK) $(if $(SLEEPS),-sleeps $(SLEEPS)) $(if $(SEED),-seed $(SEED))
fleet: deps-test build bin/versitygw ## FAULTS (300) of nodes, control, bucket and network of a fleet, and with CLOCK=10m of the clock of this host; a lost node with 70 sandboxes; drains and an upgrade under load
	$(SUDO) $(GO) run ./test/fleet faults -each -faults $(FAULTS) $(if $(SEED),-seed $(SEED)) $(if $(CLOCK),-clock $(CLOCK))
	$(SUDO) $(GO) run ./test/fleet takeover
	$(SUDO) $(GO) run ./test/fleet volumes
	$(SUDO) $(GO) run ./test/fleet snapshots
	$(SUDO) $(GO) run ./test/fleet drain
	$(SUDO) $(GO) run ./test/fleet upgrade

# The numbers of the simulation; a failure is repeated with SEED.
NODES ?= 1000
SANDBOXES ?= 100000
STEPS ?= 2000
simulate: engine ## a fleet in virtual time: NODES (1000), SANDBOXES (100000), STEPS (2000) things that happen; SEED repeats another one
	$(GO) test $(MAIN) ./test/simulate -count=1 -v -timeout 3h -seeds 1 -nodes $(NODES) -sandboxes $(SANDBOXES) -steps $(STEPS) $(if $(SEED),-seed $(SEED))

bench-wake: deps build ## latency of a request to awake, paused, swapped and on-disk sandboxes
	$(BENCH) wake
bench-sleep: deps build ## a request after every idle time up to a minute, by STEP (250ms), to MANY (4) sandboxes of each size; takes half an hour
	$(BENCH) -step $(STEP) -many $(MANY) sleep
bench-create: deps build ## from create to the first finished exec
	$(BENCH) create
bench-agent: deps build ## calls of the API inside a sandbox, and large transfers
	$(BENCH) agent
bench-control: deps build ## calls about records, of 10,000 and of 100,000, and creates of them; takes about 5 minutes
	$(BENCH) control
bench-egress: deps ## what the proxy of sandboxes adds to a request, next to a plain relay and a library
	$(BENCH) egress
bench-drive: deps build ## files on a drive next to the sandbox's own files
	$(BENCH) drive
bench-inside: deps build ## npm, git, gcc, databases, forks and files in sandboxes, next to a chroot of the same image; takes 10 minutes
	$(BENCH) inside
bench-build: deps build ## builds of Dockerfiles next to BuildKit with runc on this host, imports, and rebuilds until a sandbox runs
	$(BUILDER) $(GO) build -o $(abspath $(BIN))/yardstick ./yardstick
	$(BENCH) build
bench-roles: deps build ## what control, node and edge as processes of their own add to a call
	$(BENCH) roles
bench-fleet: deps build bin/versitygw ## what a fleet adds to creates and wakes, how soon 50 sandboxes of a killed node answer, heartbeats, the choice of a node, memory of an edge
	$(BENCH) fleet
bench-density: deps build ## memory, swap and disk of 100 idle sandboxes in each tier
	$(BENCH) density
# All benchmarks of docs/performance.md, in the order of the page. Each has its rows in
# docs/performance, so that one of them can be measured anew. The longest one comes last.
PAGES := wake create build agent drive inside egress density roles fleet sleep
PAGE ?= $(PAGES)
BUSY ?=
performance: deps build ## measure the benchmarks in PAGE (all), and write docs/performance.md; takes an hour, and refuses to start on a machine that is not quiet, unless BUSY=1; ROUNDS=3 is a quick look
	$(BUILDER) $(GO) build -o $(abspath $(BIN))/yardstick ./yardstick
	@mkdir -p docs/performance && rm -f $(PAGE:%=docs/performance/%.json)
	$(if $(BUSY),,$(GO) run ./test/bench quiet)
	@failed=""; for b in $(PAGE); do \
	  $(SUDO) env PATH="$$PATH" $(GO) run ./test/bench -step $(STEP) -many $(MANY) $(if $(ROUNDS),-rounds $(ROUNDS)) -json docs/performance/$$b.json $$b || failed="$$failed $$b"; done; \
	$(GO) run ./test/bench page $(PAGES:%=docs/performance/%.json) > docs/performance.md || failed="$$failed page"; \
	[ -z "$$failed" ] || { echo "these failed, as docs/performance.md says:$$failed"; exit 1; }

compatibility: deps-test build ## install software in sandboxes, let each sleep on disk while it works, and write docs/compatibility.md; takes 10 minutes
	$(SUDO) env PATH="$$PATH" $(GO) run ./test/compat -page docs/compatibility.md

clean: ## remove what was built
	rm -rf bin dist
