# Each verb is what CI runs; `make help` lists them. Needs Debian 12 or newer, or a relative of it.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-every check unit fuzz simulate planted-faults mutants golden vm kernel vm-kernel bench bench-full bench-% deb install uninstall clean

help: ## Show this
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what building and testing need (root, or sudo is used)
	@tools/setup

build: setup ## Build the programs, their manual pages and completions: target/package
	packaging/build.sh

demo: setup ## Hibernate and load a VM with and without omr, and show before and after (6 minutes)
	lab/run demo

test: setup ## Run all tests: unit, golden, and in VMs
	@lab/setup tests
	tools/test unit vm

test-every: setup ## Run all tests, each in VMs on every kernel it is for (two hours)
	@lab/setup tests
	tools/test unit every

check: setup ## Formatting, lints of Rust, Python and shell, and the links of the documents
	@lab/setup lint
	tools/lint
	tools/plant-faults --check
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	tools/check-links

unit: setup ## Run the tests that need no VM
	tools/test unit

fuzz: setup ## Feed parsers of the kernel's files what no kernel says (2 minutes; cargo-fuzz, nightly Rust)
	fuzz/seeds.py
	cargo +nightly fuzz run lru_gen -- -max_total_time=60 -max_len=8192
	cargo +nightly fuzz run kernel_files -- -max_total_time=60 -max_len=8192

SEEDS ?= 1..100
HOURS ?= 24
simulate: setup ## Run the daemon on model machines: SEEDS=1..100, each for HOURS=24 of model time
	OMR_SEEDS=$(SEEDS) OMR_HOURS=$(HOURS) cargo test --locked --profile simulation --package omr-daemon --lib \
		simulation::seeds -- --ignored --exact --nocapture

planted-faults: setup ## Plant faults in the daemon, one at a time, which the simulation has to find (20 minutes)
	tools/plant-faults

MUTANTS ?= policy config machine engine
mutants: setup ## Run the tests of MUTANTS="policy config machine engine" against mutants of these crates (policy: 30 minutes; all: hours)
	tools/mutants $(addprefix omr-,$(MUTANTS))

golden: setup ## Run the program on trees of files and compare what it does
	cargo test --locked --package omr --test it golden::

vm: setup ## Run the tests on real kernels in VMs
	@lab/setup tests
	tools/test vm

kernel: setup ## Build Linux 6.12 with the patches in patches/ (10 minutes, kept)
	@lab/setup kernel
	lab/run kernel

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

bench-full: setup ## Hibernation as in the seed: 8 GiB, 100 MB/s, image_size default and 0 (hours)
	lab/run hibernate-seed --mem 8192 --mb-s 100 --idle 60 --out lab/out/hibernate-seed-full

bench-%: setup ## Run one scenario; lab/run lists them
	lab/run $*

deb: setup ## Build the Debian package: target/debian/*.deb
	packaging/build-deb.sh

install: ## Install on this machine what make build has built (root); DESTDIR and PREFIX as usual
	packaging/install.sh install

uninstall: ## Take it off again; the configuration stays
	packaging/install.sh uninstall

clean: ## Remove what was built and measured
	rm -rf target lab/out
