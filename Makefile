# make demo    runs the main job on the local engine, with stand-ins for GitHub and the model
# make test    sets up what the tests need and runs them all
# make bench   measures, beside what a user would pick instead
# make build   bin/sbxpair and bin/sbx-local

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.stamp=$(VERSION)
COPILOT := .cache/copilot
AGENTS  := .cache/agents
# gVisor is linked into cmd/sbx-local alone; leaving it out keeps vet and the race detector off a very large build.
PACKAGES = $$($(GO) list ./... | grep -v /cmd/sbx-local$$)

.PHONY: demo test bench build install lint tools clean

demo: tools build $(COPILOT)/.installed
	$(GO) run ./fixtures/demo

test: tools build $(COPILOT)/.installed $(AGENTS)/.installed
	scripts/tools dbus-run-session gnome-keyring-daemon
	scripts/test

bench: tools build $(COPILOT)/.installed
	scripts/bench

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sbxpair ./cmd/sbxpair
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sbx-local ./cmd/sbx-local

install:
	CGO_ENABLED=0 $(GO) install -trimpath -ldflags '$(LDFLAGS)' ./cmd/sbxpair ./cmd/sbx-local

lint:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet $(PACKAGES)
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else echo "golangci-lint is not installed: vet only"; fi

tools:
	@scripts/tools

# The Copilot CLI, pinned by a lock file, with npm's install scripts off.
$(COPILOT)/.installed: fixtures/demo/copilot/package.json fixtures/demo/copilot/package-lock.json
	mkdir -p $(COPILOT)
	cp fixtures/demo/copilot/package.json fixtures/demo/copilot/package-lock.json $(COPILOT)/
	cd $(COPILOT) && npm ci --ignore-scripts --no-audit --no-fund
	touch $@

# Claude Code and Codex, which the tests drive as well, in the same way.
$(AGENTS)/.installed: fixtures/agents/package.json fixtures/agents/package-lock.json
	mkdir -p $(AGENTS)
	cp fixtures/agents/package.json fixtures/agents/package-lock.json $(AGENTS)/
	cd $(AGENTS) && npm ci --ignore-scripts --no-audit --no-fund
	touch $@

clean:
	rm -rf bin .cache
