//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/loop"
)

// benchStage is open for a benchmark: the built command, not the one with the race detector.
func benchStage(b *testing.B, opts stage.Options) *stage.Stage {
	b.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		b.Fatal(err)
	}
	opts.Dir, opts.Engine, opts.Copilot = b.TempDir(), filepath.Join(root, "bin", "sbx-local"), filepath.Join(root, ".cache", "copilot")
	opts.Sbxpair = filepath.Join(root, "bin", "sbxpair")
	opts.Env = append(opts.Env, "SBXPAIR_PHASES=execute,verify", "SBXPAIR_LIMITS_REVISIONS=0")
	s, err := stage.Open(b.Context(), opts)
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), 10*time.Second)
		defer cancel()
		if err := s.Standin.Stop(ctx); err != nil {
			b.Error(err)
		}
	})
	return s
}

func benchRun(b *testing.B, s *stage.Stage) loop.Result {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	cmd := s.Command(ctx, append([]string{"--config", s.Config}, runArgs(s)...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		b.Errorf("%v\n%s", err, stderr.String())
	}
	var r loop.Result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		b.Error(err)
	}
	return r
}

// BenchmarkLoopTurn is the real Copilot CLI with a scripted model of no delay, in a run: the execute phase beside the CLI's own
// time in it, and the whole run.
func BenchmarkLoopTurn(b *testing.B) {
	s := benchStage(b, stage.Options{})
	var phase, cli, whole time.Duration
	for b.Loop() {
		r := benchRun(b, s)
		whole += r.Took
		cli += r.Agent.Took
		for _, p := range r.Phases {
			if p.Phase == events.PhaseExecute {
				phase += p.Took
			}
		}
	}
	b.ReportMetric(phase.Seconds()/float64(b.N), "execute-s")
	b.ReportMetric(cli.Seconds()/float64(b.N), "cli-s")
	b.ReportMetric(phase.Seconds()/max(cli.Seconds(), 0.001), "execute/cli")
	b.ReportMetric(whole.Seconds()/float64(b.N), "run-s")
}

// BenchmarkTenRunsAtOnce is ten whole runs at the same time on sbx-local, each with its pair and its delivery: how long all of
// them and one of them take, and the most memory that all their processes held (proportional set sizes, sampled).
func BenchmarkTenRunsAtOnce(b *testing.B) {
	s := benchStage(b, stage.Options{Config: map[string]any{
		"agent":  map[string]any{"name": "command", "provider": "github", "token": map[string]any{"env": "COPILOT_GITHUB_TOKEN"}, "command": []string{"sh", "-c", fixWith("slugify.sh")}},
		"verify": []string{"sh test.sh"},
	}})
	var slowest, all time.Duration
	peak := 0.0
	for b.Loop() {
		done := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() {
			for {
				peak = max(peak, memoryOf(s.Dir))
				select {
				case <-done:
					return
				case <-time.After(250 * time.Millisecond):
				}
			}
		})
		start := time.Now()
		var mu sync.Mutex
		var runs sync.WaitGroup
		for range 10 {
			runs.Go(func() {
				r := benchRun(b, s)
				mu.Lock()
				defer mu.Unlock()
				slowest = max(slowest, r.Took)
			})
		}
		runs.Wait()
		all += time.Since(start)
		close(done)
		watch.Wait()
	}
	b.ReportMetric(all.Seconds()/float64(b.N), "ten-s")
	b.ReportMetric(slowest.Seconds(), "slowest-s")
	b.ReportMetric(peak, "peak-MiB")
}

// memoryOf adds up the proportional set sizes, in MiB, of the processes that name dir on their command line or in their
// environment, and of their children.
func memoryOf(dir string) float64 {
	files, _ := filepath.Glob("/proc/[0-9]*/smaps_rollup")
	total := 0.0
	for _, file := range files {
		process := filepath.Dir(file)
		environ, _ := os.ReadFile(filepath.Join(process, "environ"))
		cmdline, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		if process == fmt.Sprintf("/proc/%d", os.Getpid()) || !bytes.Contains(environ, []byte(dir)) && !bytes.Contains(cmdline, []byte(dir)) {
			continue
		}
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			var kib float64
			if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kib); n == 1 {
				total += kib / 1024
			}
		}
	}
	return total
}
