//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Two signals at the same moment, as timeout(1) sends them, are one. One that comes after the word about the first leaves at
// once, however long the engine takes to end, and says where to look.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lives, engine := filepath.Join(dir, "lives"), filepath.Join(dir, "sbx")
	if err := os.WriteFile(engine, []byte("#!/bin/sh\ntrap '' TERM INT\n: >"+lives+"\nwhile [ -e "+lives+" ]; do sleep 0.1; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(lives) // ends the engine
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	said := func() string {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	cmd := exec.CommandContext(t.Context(), self, "doctor", "--engine", "sbx", "--engine-path", engine)
	cmd.Env = append(os.Environ(), beCommand+"=1", "GORACE=atexit_sleep_ms=0", "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_STATE_HOME="+dir)
	cmd.Dir, cmd.Stderr = dir, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); cmd.Wait() }()
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				cmd.Process.Kill()
				t.Fatalf("%s\n%s", what, said())
			}
		}
	}
	until("the engine is not asked", func() bool { _, err := os.Stat(lives); return err == nil })
	for range 2 {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	until("the signal is not heard", func() bool { return strings.Contains(said(), "cleaning up (again to leave at once") })
	heard := time.Now()
	until("it does not end", func() bool {
		select {
		case <-ended:
			return true
		default:
			cmd.Process.Signal(syscall.SIGTERM)
			return false
		}
	})
	if took := time.Since(heard); took < again/2 {
		t.Errorf("it left %v after the first signal: one that came with it was taken for another", took)
	}
	if code := cmd.ProcessState.ExitCode(); code != exitLeft || !strings.Contains(said(), "left at once; what may be left is on record") {
		t.Errorf("exit code %d\n%s", code, said())
	}
}
