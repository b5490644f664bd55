//go:build !linux

package main

// asEngine does nothing: the tests that put an engine's shim in place are for Linux.
func asEngine() {}
