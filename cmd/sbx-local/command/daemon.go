package command

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/engine"
	"github.com/sbxpair/sbxpair/engine/egress"
	"github.com/sbxpair/sbxpair/engine/rules"
	"github.com/sbxpair/sbxpair/engine/settings"
	"github.com/sbxpair/sbxpair/engine/upstream"
	"github.com/sbxpair/sbxpair/policy"
)

// daemonIdle is how long an auto-started daemon stays when nothing needs it.
const daemonIdle = 2 * time.Second

func newDaemonCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Manage the daemon, which serves the sandboxes' way out",
		Args:  unknownVerb,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var detach, auto, asJSON bool
	var preset string
	start := &cobra.Command{
		Use: "start", Short: "Start the daemon", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.initPolicy(cmd.Context(), preset); err != nil {
				return err
			}
			switch {
			case detach:
				return runDaemonDetached(cmd.Context(), a)
			case auto:
				return runDaemon(cmd.Context(), a, daemonIdle)
			}
			return runDaemon(cmd.Context(), a, 0)
		},
	}
	start.Flags().BoolVarP(&detach, "detach", "d", false, "run in the background")
	start.Flags().StringVar(&preset, "policy", "", "initialise the global network policy")
	start.Flags().BoolVar(&auto, "auto", false, "end when no sandbox runs")
	start.Flags().MarkHidden("auto")
	status := &cobra.Command{
		Use: "status", Short: "Show whether the daemon runs", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemonStatus(cmd.Context(), a, asJSON) },
	}
	status.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	stop := &cobra.Command{
		Use: "stop", Short: "Stop the daemon; sandboxes keep running, without a way out", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemonStop(cmd.Context(), a) },
	}
	restart := &cobra.Command{
		Use: "restart", Short: "Restart the daemon; no sandbox is lost", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := runDaemonStop(cmd.Context(), a); err != nil {
				return err
			}
			return runDaemonDetached(cmd.Context(), a)
		},
	}
	cmd.AddCommand(start, stop, restart, status)
	return cmd
}

func (a *app) initPolicy(ctx context.Context, preset string) error {
	if preset == "" {
		return nil
	}
	p, err := policy.ParsePreset(preset)
	if err != nil {
		return err
	}
	store, err := a.ruleStore()
	if err != nil {
		return err
	}
	return store.Init(ctx, p)
}

// runDaemon serves until it is told to stop or, with idle, until nothing needs it.
func runDaemon(ctx context.Context, a *app, idle time.Duration) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	st := e.State
	log, err := engine.OpenLog(st.DaemonLog())
	if err != nil {
		return err
	}
	defer log.Close()
	logger := slog.New(slog.NewJSONHandler(log, nil)).With("version", Version+" "+a.Revision)
	e.Log = logger
	proxy, err := a.newProxy(st, logger)
	if err != nil {
		logger.Error("daemon cannot start", "err", err)
		return err
	}
	d := &engine.Daemon{Engine: e, Proxy: proxy, Version: Version, Revision: a.Revision, Build: a.Version, Idle: idle, AutoStop: settings.Open(st.Dir).AutoStop}
	if idle == 0 {
		fmt.Fprintf(a.Stdout, "Starting daemon at %s (Ctrl+C to stop)...\n", st.DaemonSocket())
	}
	err = d.Run(ctx, func() { logger.Info("daemon started", "pid", os.Getpid(), "socket", st.DaemonSocket()) })
	switch {
	case idle > 0 && errors.Is(err, engine.ErrDaemonRuns):
		return nil // somebody else was faster: all that was wanted is there
	case err != nil:
		logger.Error("daemon ended", "err", err)
		return err
	}
	logger.Info("daemon ended")
	return nil
}

// otherBuild says that the daemon is not of this command's build, or is "".
func (a *app) otherBuild(s engine.DaemonStatus) string {
	if s.Version == Version && s.Build == a.Version && s.Revision == a.Revision {
		return ""
	}
	return fmt.Sprintf("the daemon is of another build (sbx-local %s %s) than this command (%s %s)", s.Build, s.Revision, a.Version, a.Revision)
}

// warnBuild tells who makes or starts a sandbox that another build guards its way out: a daemon outlives its program's replacement.
func (a *app) warnBuild(ctx context.Context, e *engine.Engine) {
	s, err := e.DaemonHealth(ctx)
	if err != nil {
		return // none runs, or it will be found out
	}
	if text := a.otherBuild(s); text != "" {
		fmt.Fprintf(a.Stderr, "warning: %s; this one takes over by: sbx daemon restart (no sandbox is lost)\n", text)
	}
}

// newProxy joins the egress proxy to the engine's records.
func (a *app) newProxy(st *engine.State, logger *slog.Logger) (engine.ProxyFunc, error) {
	ca, err := egress.LoadOrCreateCA(st.CADir())
	if err != nil {
		return nil, err
	}
	p := egress.New(egress.Config{
		Rules: rules.Open(st.PolicyDir()), Vault: a.vault(st), CA: ca, Log: rules.OpenLog(st.PolicyDir()), Logger: logger,
		Upstream: a.upstream(settings.Open(st.Dir)),
	})
	return func(ctx context.Context, l net.Listener, r engine.Record) error {
		sb := egress.Sandbox{Name: r.Name, ID: r.ID, Resolve: r.Resolve}
		if r.UpstreamCA != "" {
			sb.UpstreamRoots = x509.NewCertPool()
			if !sb.UpstreamRoots.AppendCertsFromPEM([]byte(r.UpstreamCA)) {
				return errors.New("upstream CA holds no certificate")
			}
		}
		return p.Serve(ctx, l, sb)
	}, nil
}

// upstream tells which proxies of the machine's own are on the way, as sbx 0.47: the variable for sandboxes, else the settings,
// which act at once, else the usual variables. The variables are those of whoever started the daemon.
func (a *app) upstream(s *settings.Store) func() (upstream.Proxies, error) {
	env := func(names ...string) string {
		for _, name := range names {
			if v := a.Getenv(name); v != "" {
				return v
			}
		}
		return ""
	}
	return func() (upstream.Proxies, error) {
		set, err := s.Proxies()
		if err != nil {
			return upstream.Proxies{}, err
		}
		own, usual := env("DOCKER_SANDBOXES_PROXY"), env("NO_PROXY", "no_proxy")
		no := cmp.Or(env("DOCKER_SANDBOXES_NO_PROXY"), set.NoProxy)
		switch {
		case own != "":
			return upstream.Proxies{HTTP: own, HTTPS: own, NoProxy: no}, nil
		case set.HTTP != "":
			return upstream.Proxies{HTTP: set.HTTP, HTTPS: set.HTTPS, NoProxy: no}, nil
		}
		return upstream.Proxies{HTTP: env("HTTP_PROXY", "http_proxy"), HTTPS: env("HTTPS_PROXY", "https_proxy"), NoProxy: cmp.Or(no, usual)}, nil
	}
}

// runDaemonDetached starts a daemon that stays, and returns when it answers.
func runDaemonDetached(ctx context.Context, a *app) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	if s, err := e.DaemonHealth(ctx); err == nil {
		return fmt.Errorf("daemon is already running (PID: %d, socket: %s)", s.PID, e.State.DaemonSocket())
	}
	e.DaemonArgs = []string{"daemon", "start"}
	if err := e.EnsureDaemon(ctx); err != nil {
		return err
	}
	s, err := e.DaemonHealth(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Stdout, "Daemon started (PID: %d, socket: %s)\nLogs: %s\n", s.PID, e.State.DaemonSocket(), e.State.DaemonLog())
	return nil
}

func runDaemonStop(ctx context.Context, a *app) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	if _, err := e.DaemonHealth(ctx); errors.Is(err, engine.ErrDaemon) {
		fmt.Fprintln(a.Stdout, "Daemon is not running")
		return nil
	}
	fmt.Fprintf(a.Stdout, "Stopping daemon at %s...\n", e.State.DaemonSocket())
	if err := e.DaemonShutdown(ctx); err != nil {
		return err
	}
	fmt.Fprintln(a.Stdout, "✓ Daemon stopped successfully")
	return nil
}

func runDaemonStatus(ctx context.Context, a *app, asJSON bool) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	state := "stopped"
	if _, err := e.DaemonHealth(ctx); err == nil {
		state = "running"
	}
	if asJSON {
		return a.printJSON(struct {
			Status string `json:"status"`
			Socket string `json:"socket"`
			Logs   string `json:"logs"`
		}{state, e.State.DaemonSocket(), e.State.DaemonLog()})
	}
	fmt.Fprintf(a.Stdout, "Status: %s\nSocket: %s\nLogs: %s\n", state, filepath.Clean(e.State.DaemonSocket()), e.State.DaemonLog())
	return nil
}
