# deepinfer. `make run` and `make test` are all that a newcomer needs; `make help` lists the rest.

GO       ?= go
CXX      ?= g++
LISTEN   ?= 127.0.0.1:8080
FUZZTIME ?= 20s
SOAK     ?= 10m
BENCH    ?= .

# The core links no C: backends are shared objects that the worker loads at run time.
export CGO_ENABLED = 0

HAVE_CXX := $(shell command -v $(firstword $(CXX)) 2>/dev/null)
NO_CXX    = no C++ compiler ($(CXX)): the cpu backend is left out and the slower pure-Go backend serves instead

.PHONY: help run build backends test test-clients vet check race fuzz soak bench generate clean

help:
	@echo "make run       build and serve the embedded demo model on http://$(LISTEN)"
	@echo "make build     bin/deepinfer, bin/deepinfer-worker, bin/backends/"
	@echo "make test      everything this machine can test, and what was skipped and why"
	@echo "make test-clients  the official Python and JavaScript clients against the server"
	@echo "make check     gofmt, vet, staticcheck, tree rules, layouts, race detector"
	@echo "make fuzz      every fuzz target for FUZZTIME=$(FUZZTIME)"
	@echo "make soak      the long reliability runs, SOAK=$(SOAK) each"
	@echo "make bench     every benchmark, BENCH=$(BENCH), to bin/bench.txt"
	@echo "make generate  files made from other files"
	@echo "make clean     remove what was built"

run: build
	@echo "==> deepinfer serve on http://$(LISTEN)"
	@exec bin/deepinfer serve --listen $(LISTEN)

build: backends
	@echo "==> bin/deepinfer, bin/deepinfer-worker"
	@mkdir -p bin
	@$(GO) build -o bin/deepinfer ./cmd/deepinfer
	@$(GO) build -o bin/deepinfer-worker ./cmd/deepinfer-worker

backends:
	@mkdir -p bin/backends
ifneq ($(HAVE_CXX),)
	@echo "==> bin/backends/cpu.so"
	@$(MAKE) --no-print-directory -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) -C backends/cpu CXX="$(CXX)" OUT=../../bin/backends
	@cp backends/cpu/cpu.backend.hcl bin/backends/
else
	@echo "==> $(NO_CXX)"
	@rm -f bin/backends/cpu.so bin/backends/cpu.backend.hcl
endif

vet:
	@echo "==> go vet"
	@$(GO) vet ./...

# The C++ tests come first: they are short, and the Go tests below load what they check.
test: build vet
ifneq ($(HAVE_CXX),)
	@echo "==> C++ tests of backends/cpu"
	@$(MAKE) --no-print-directory -C backends/cpu CXX="$(CXX)" test
	@echo "==> go test"
	@$(GO) run ./internal/testreport -timeout 20m ./...
else
	@echo "==> go test"
	@$(GO) run ./internal/testreport -skipped "backends/cpu C++ tests: no C++ compiler ($(CXX))" -timeout 20m ./...
endif

# Fetches the clients' packages, so it is not part of make test; core/serve tests the same flows with the Go clients.
test-clients: build
	@test/clients/run.sh bin/deepinfer

check: vet
	@echo "==> gofmt"
	@files=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$files" || { echo "run gofmt -w on:"; echo "$$files"; exit 1; }
	@echo "==> staticcheck"
	@if $(GO) tool -n staticcheck >/dev/null 2>&1; then $(GO) tool staticcheck ./...; else echo "staticcheck skipped: its module is not on this machine and could not be fetched"; fi
	@echo "==> rules of the tree, layouts of the C ABI"
	@$(GO) test -count=1 . ./sdk/abi/...
	@$(MAKE) --no-print-directory race

# Packages that start goroutines; the others have nothing to race.
race:
	@if command -v gcc >/dev/null 2>&1; then \
		packages=$$(git ls-files '*.go' | grep -v _test.go | xargs grep -lE '^[[:space:]]+go (func|[a-zA-Z_.]+\()' | xargs -n1 dirname | sort -u | sed 's|^|./|'); \
		echo "==> go test -race" $$packages; \
		CGO_ENABLED=1 $(GO) test -race -short -timeout 20m $$packages; \
	else echo "race detector skipped: it needs gcc"; fi

fuzz:
	@git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func / /' | while read -r file name; do \
		echo "==> $$name in $$(dirname $$file)"; \
		out=$$($(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "./$$(dirname $$file)" 2>&1); rc=$$?; echo "$$out"; \
		case "$$out" in \
		*"Failing input written"*) exit 1 ;; \
		*"context deadline exceeded"*) echo "(go test reports the end of the fuzzing time as a failure now and then; no input failed)" ;; \
		*) test $$rc -eq 0 || exit 1 ;; \
		esac; \
	done

soak: build
	@SOAK=$(SOAK) $(GO) test -run '^TestSoak' -count=1 -timeout 0 -v ./...

bench: build
	@$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 0 ./... | tee bin/bench.txt

generate:
	@$(GO) generate ./...

clean:
	@rm -rf bin
	@if [ -f backends/cpu/Makefile ]; then $(MAKE) --no-print-directory -C backends/cpu clean; fi
