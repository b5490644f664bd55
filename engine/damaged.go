package engine

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/sbxpair/sbxpair/engine/guest"
)

// mountedID finds the id of a sandbox whose record cannot be read: its root has the proxy's folder in it. "": it cannot be found.
func (e *Engine) mountedID(name string) string {
	data, err := os.ReadFile(filepath.Join(e.State.SandboxDir(name), "config.json"))
	if err != nil {
		return ""
	}
	var bundle struct {
		Mounts []struct{ Source, Destination string }
	}
	if json.Unmarshal(data, &bundle) != nil {
		return ""
	}
	for _, m := range bundle.Mounts {
		if id := filepath.Base(m.Source); m.Destination == guest.ProxyDir && validID(id) {
			return id
		}
	}
	return ""
}

// unread ends what runs of a sandbox whose record cannot be read and returns what can be known of it, so that it can be removed.
func (e *Engine) unread(name string) (Record, error) {
	// Every process of a sandbox logs to its folder.
	if err := endByArg("--log=" + filepath.Join(e.State.SandboxDir(name), "runsc.log")); err != nil {
		return Record{}, err
	}
	id := e.mountedID(name)
	if id == "" {
		id = uuid.NewString() // nobody's
	}
	return Record{Version: recordVersion, Name: name, ID: id, Status: Stopped}, nil
}
