package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/zalando/go-keyring"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/vault"
	"github.com/sbxpair/sbxpair/secrets"
)

// keyringVerb is the hidden verb of the process that speaks to the system's keyring; see vault.HelperKeyring.
const keyringVerb = "_keyring"

// vault is the store of secrets of a state, with the keyring behind it.
func (a *app) vault(st *engine.State) *vault.Store {
	return vault.Open(st.SecretsDir()).WithKeyring(vault.HelperKeyring{Argv: []string{a.Self, keyringVerb}})
}

func newKeyringCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: keyringVerb + " set|get|rm ITEM", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error { return runKeyring(a, args[0], args[1]) },
	}
}

// keyringService is what the items are filed under.
const keyringService = "sbx-local"

func runKeyring(a *app, verb, item string) error {
	if err := sessionBus(a.Getenv); err != nil {
		return err
	}
	switch verb {
	case "set":
		b, err := io.ReadAll(io.LimitReader(a.Stdin, maxSecret))
		if err != nil {
			return err
		}
		return keyring.Set(keyringService, item, string(b))
	case "get":
		value, err := keyring.Get(keyringService, item)
		if err != nil {
			return err
		}
		_, err = io.WriteString(a.Stdout, secrets.New(value+"\n").Reveal())
		return err
	case "rm":
		if err := keyring.Delete(keyringService, item); err != nil && !errors.Is(err, keyring.ErrNotFound) {
			return err
		}
		return nil
	}
	return fmt.Errorf("unknown verb %q", verb)
}

// sessionBus checks that there is a session bus: without one, the library would start one that stays.
func sessionBus(getenv func(string) string) error {
	if getenv("DBUS_SESSION_BUS_ADDRESS") != "" {
		return nil
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "bus")); err == nil {
			return nil
		}
	}
	return errors.New("no session bus (DBUS_SESSION_BUS_ADDRESS is not set), so no keyring can be asked")
}
