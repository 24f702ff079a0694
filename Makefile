# Each verb is what CI runs; `make help` lists them. Needs Debian 12 or newer, or a relative of it.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-every check advisories unit fuzz simulate planted-faults mutants golden web fleet vm vm-arm64 kernel vm-kernel bench bench-full bench-% soak deb reproducible install uninstall clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what building and testing need (root, or sudo is used)
	@tools/setup

build: setup ## Build the programs, their manual pages and completions: target/package
	packaging/build.sh

demo: setup ## Hibernate and load a VM with and without omr, and show before and after (8 minutes, of which 3 build omr)
	lab/run demo

test: setup ## Run the tests: unit, golden, in a browser, of a fleet, and in VMs (the patched kernel has make vm-kernel)
	@lab/setup tests
	tools/test unit web fleet vm

test-every: setup ## Run all tests, those that seldom run too, in VMs on 6.12, then on 6.1, then on 7.x (four hours)
	@lab/setup tests
	tools/test unit web fleet every

check: setup ## Formatting, lints of Rust, Python and shell, the crates' licences and sources, the links of the documents, and whether the kernel patches apply
	@lab/setup lint
	tools/lint
	tools/plant-faults --check
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	tools/check-links
	tools/check-patches

advisories: setup ## Look for known faults of the crates (the database comes from the network)
	@lab/setup lint
	tools/lint advisories

unit: setup ## Run the tests that need no VM
	tools/test unit

FUZZ_SECONDS ?= 60
fuzz: setup ## Feed all parsers with changed real inputs, each for FUZZ_SECONDS=60 (20 minutes)
	tools/fuzz $(FUZZ_SECONDS)

SEEDS ?= 1..100
HOURS ?= 24
simulate: setup ## Run the daemon on model machines: SEEDS=1..100, each for HOURS=24 of model time
	OMR_SEEDS=$(SEEDS) OMR_HOURS=$(HOURS) cargo test --locked --profile simulation --package omr-daemon --lib \
		simulation::seeds -- --ignored --exact --nocapture

planted-faults: setup ## Plant faults in the daemon, one at a time, which the simulation has to find (35 minutes)
	tools/plant-faults

MUTANTS ?= policy config machine engine
mutants: setup ## Run the tests of MUTANTS="policy config machine engine" against mutants of these crates (policy: 30 minutes; all: hours)
	tools/mutants $(addprefix omr-,$(MUTANTS))

golden: setup ## Run the program on trees of files and compare what it does, and what omr top draws
	cargo test --locked --package omr --test it golden::
	cargo test --locked --package omr-top golden

web: setup ## Run the tests of the page of omr web, in a browser
	@lab/setup tests
	tools/test web

fleet: setup ## Run the tests of the Python package for fleets
	@lab/setup tests
	tools/test fleet

vm: setup ## Run the tests on real kernels in VMs
	@lab/setup tests
	tools/test vm

vm-arm64: setup ## Run the tests of the kernel's interfaces in VMs on arm64 (Debian 12 only: the compiler comes from there)
	@lab/setup arm64
	tools/test arm64

RELEASE ?= 6.12
kernel: setup ## Build Linux RELEASE=6.12 or 7.3 with the patches in patches/ (10 minutes, kept)
	@lab/setup kernel
	lab/run kernel --release $(RELEASE)

vm-kernel: kernel ## Run the tests of the patched kernel in VMs
	tools/test kernel

bench: setup ## Run the benchmarks that take no more than an hour each; results in lab/out (five hours, on a machine that does nothing else)
	lab/run self
	lab/run latency
	lab/run hibernate
	lab/run hibernate-seed --arms off,on --workloads seed
	lab/run hibernate-seed --guest mini --mem 768 --iops 600 --workloads working-set --sizes zero --idle 3 --out lab/out/return
	lab/run burst
	lab/run migrate

bench-full: setup ## Hibernation at the seed's size: 8 GiB, 100 MB/s, image_size default and 0, one pair of runs
	lab/run hibernate-seed --mem 8192 --mb-s 100 --idle 60 --pairs 1 --arms off,on --workloads seed --out lab/out/hibernate-seed-full

bench-%: setup ## Run one scenario; lab/run lists them
	lab/run $*

soak: setup ## Run the daemon for six hours of a guest's clock: nothing may grow (20 minutes)
	lab/run soak

deb: setup ## Build the Debian package: target/debian/*.deb
	packaging/build-deb.sh

reproducible: setup ## Build the Debian package twice in different directories, and compare the bytes
	tools/reproducible

install: ## Install on this machine what make build has built (root); DESTDIR and PREFIX as usual
	packaging/install.sh install

uninstall: ## Take it off again; the configuration stays
	packaging/install.sh uninstall

clean: ## Remove what was built and measured
	rm -rf target lab/out
