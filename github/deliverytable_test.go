package github

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/fixtures/page"
	"github.com/sbxpair/sbxpair/sbx"
)

var update = flag.Bool("update", false, "write the generated pages of docs/reference")

// deliveryStep is one request of a delivery, at which something can go wrong.
type deliveryStep struct {
	name string
	op   string // GitHub's operation id, or git's service
	ways []Way
}

func deliverySteps() []deliveryStep {
	git, api := []Way{ViaGit}, []Way{ViaAPI}
	return []deliveryStep{
		{"read the repository", "repos/get", git},
		{"read the base branch", "git/get-ref", git},
		{"fetch the base", hub.OpFetch, git},
		{"push", hub.OpPush, git},
		{"read the base commit", "git/get-commit", api},
		{"make the tree", "git/create-tree", api},
		{"make the commit", "git/create-commit", api},
		{"make the branch", "git/create-ref", api},
		{"look for the pull request", "pulls/list", git},
		{"open the pull request", "pulls/create", git},
		{"read the comments", "issues/list-comments", git},
		{"comment", "issues/create-comment", git},
	}
}

// deliveryFault is one thing that goes wrong at a step.
type deliveryFault struct {
	name  string
	fault hub.Fault
	git   bool // can be aimed at git's own requests too
	crash bool // this process and the sandbox are gone at that moment
	hang  bool
}

func deliveryFaults() []deliveryFault {
	return []deliveryFault{
		{name: "connection refused once", fault: hub.Fault{Kind: hub.Refused, Times: 1}, git: true},
		{name: "done, answer lost", fault: hub.Fault{Kind: hub.LostAnswer, Times: 1}, git: true},
		{name: "502 once", fault: hub.Fault{Kind: hub.ServerError, Times: 1}, git: true},
		{name: "502 for good", fault: hub.Fault{Kind: hub.ServerError}, git: true},
		{name: "no answer, once", fault: hub.Fault{Kind: hub.Hang, Times: 1}, hang: true},
		{name: "token expired", fault: hub.Fault{Kind: hub.Expired}, git: true},
		{name: "secondary limit, 429", fault: hub.Fault{Kind: hub.SecondaryLimit, Times: 1, Status: 429, RetryAfter: 3 * time.Second}},
		{name: "primary limit, 403, an hour", fault: hub.Fault{Kind: hub.PrimaryLimit}},
		{name: "crash after it was done", fault: hub.Fault{Kind: hub.LostAnswer, Times: 1}, git: true, crash: true},
	}
}

// ending is what a person is told about how a delivery ended: the first kind that matches.
func ending(err error) string {
	for _, k := range []struct {
		kind error
		name string
	}{
		{nil, "done"}, {context.Canceled, "ended"}, {ErrUnauthorized, "credential refused"}, {ErrRateLimited, "rate limit"}, {ErrServer, "GitHub failed"},
		{ErrNoChanges, "nothing to do"}, {ErrEmptyRepository, "empty repository"}, {ErrArchived, "archived"}, {ErrBaseMissing, "base not on GitHub"}, {ErrBadBundle, "bundle refused"},
		{ErrBlockedByPolicy, "blocked by policy"}, {ErrBranchMoved, "branch of somebody else"}, {ErrPullClosed, "closed by somebody"}, {ErrPushRefused, "push refused"}, {ErrRefused, "refused by the gate"}, {ErrForbidden, "permission missing"},
		{ErrNotFound, "not found"}, {ErrValidation, "not accepted"}, {ErrNetwork, "not reached"}, {ErrTooLarge, "too large"}, {ErrOutOfBounds, "out of bounds"},
	} {
		if err == k.kind || k.kind != nil && errors.Is(err, k.kind) {
			return k.name
		}
	}
	return "error: " + err.Error()
}

// mortal is a github sandbox that can die: with it ends what runs there, and nothing starts any more.
type mortal struct {
	*hostRunner
	ctx context.Context
}

func (m mortal) Exec(ctx context.Context, spec sbx.ExecSpec) (sbx.ExecResult, error) {
	if m.ctx.Err() != nil {
		return sbx.ExecResult{}, sbx.ErrNotRunning
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	return m.hostRunner.Exec(ctx, spec)
}

// left is what stands on GitHub for one run, without numbers that differ from run to run.
type left struct {
	Tree, Parent string
	Pulls        int
	Title, Body  string
	Draft        bool
	Comments     []string
}

func (b *bench) left(run string) (l left) {
	b.t.Helper()
	dir, err := b.Dir("octo/app")
	if err != nil {
		b.t.Fatal(err)
	}
	refs, err := b.Refs(b.t.Context(), "octo/app")
	if err != nil {
		b.t.Fatal(err)
	}
	if sha := refs["refs/heads/sbxpair/"+run]; sha != "" {
		l.Tree, l.Parent = b.git(dir, "rev-parse", sha+"^{tree}"), b.git(dir, "rev-parse", sha+"^")
	}
	pulls, err := b.Pulls(b.t.Context(), "octo/app")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, p := range pulls {
		if p.Head == "sbxpair/"+run {
			l.Pulls++
			l.Title, l.Body, l.Draft, l.Comments = p.Title, strings.ReplaceAll(p.Body, run, "RUN"), p.Draft, nil
			for _, c := range p.Comments {
				l.Comments = append(l.Comments, strings.ReplaceAll(c, run, "RUN"))
			}
		}
	}
	return l
}

// TestDeliveryTable is the table fault × step. Each cell is one delivery with that fault at that step, then one without, by a new
// client in a new sandbox as "sbxpair deliver" makes it: whatever came of the first, after the second GitHub is as after one
// clean delivery, with nothing twice.
func TestDeliveryTable(t *testing.T) {
	steps, faults := deliverySteps(), deliveryFaults()
	var mu sync.Mutex
	var ran atomic.Int64
	cells := map[string]string{}
	t.Run("cells", func(t *testing.T) {
		for _, step := range steps {
			for _, way := range step.ways {
				t.Run(string(way)+", "+step.name, func(t *testing.T) {
					t.Parallel()
					b := newBench(t)
					b.write("src/a.go", "package a // x\n")
					b.commit("one")
					bundle := b.bundle()
					deliver := func(ctx context.Context, m mortal, run string, timeout time.Duration) (Delivered, error) {
						client := NewClient(m, DotCom(), WithClock(b.clock.clock()), WithVersion("test"))
						defer client.Close()
						client.transport.RequestTimeout = timeout
						d := b.delivery()
						d.Bundle = bytes.NewReader(bundle)
						if way == ViaAPI {
							b.byAPI(&d)
						}
						d.Run, d.Branch = run, "sbxpair/"+run
						return Deliver(ctx, m, client, d)
					}
					defer ran.Add(1)
					alive := mortal{b.hostRunner, t.Context()}
					if _, err := deliver(t.Context(), alive, "clean", DefaultRequestTimeout); err != nil {
						t.Fatal(err)
					}
					want := b.left("clean")
					if want.Pulls != 1 || !want.Draft || len(want.Comments) != 1 || want.Parent != b.base {
						t.Fatalf("a clean delivery leaves %+v", want)
					}
					for i, f := range faults {
						isGit := step.op == hub.OpFetch || step.op == hub.OpPush
						if isGit && !f.git {
							continue
						}
						run := fmt.Sprint("r", i)
						ctx, cancel := context.WithCancel(t.Context())
						timeout := DefaultRequestTimeout
						if f.hang {
							timeout = 2 * time.Second
						}
						if f.crash {
							b.onAbort.Store(&cancel)
						}
						f.fault.Op = step.op
						before := b.Fired()
						b.Inject(f.fault)
						_, err := deliver(ctx, mortal{b.hostRunner, ctx}, run, timeout)
						cancel()
						b.onAbort.Store(nil)
						b.ClearFaults()
						if b.Fired() == before {
							t.Fatalf("%s: the fault never hit", f.name)
						}
						for _, dir := range glob(t, b.world, "sbxpair-*") { // the next sandbox is a new one
							if !f.crash {
								t.Errorf("%s: left in the sandbox: %s", f.name, filepath.Base(dir))
							}
							os.RemoveAll(dir)
						}
						if err != nil && strings.Contains(err.Error(), b.token.Reveal()) {
							t.Errorf("%s: the error holds the token", f.name)
						}
						got := b.left(run)
						if err == nil && !reflect.DeepEqual(got, want) {
							t.Errorf("%s: left %+v, want %+v", f.name, got, want)
						}
						cell := ending(err)
						if err != nil {
							if _, err := deliver(t.Context(), alive, run, DefaultRequestTimeout); err != nil {
								t.Errorf("%s: the second delivery: %v", f.name, err)
							}
							if got = b.left(run); !reflect.DeepEqual(got, want) {
								t.Errorf("%s: after the second delivery %+v, want %+v", f.name, got, want)
							}
							cell += ", again: done"
						}
						mu.Lock()
						cells[step.op+string(way)+f.name] = cell
						mu.Unlock()
					}
				})
			}
		}
	})
	want := 0
	for _, step := range steps {
		want += len(step.ways)
	}
	if t.Failed() || ran.Load() != int64(want) {
		return // or only some of them were run
	}
	var page strings.Builder
	for _, f := range faults {
		fmt.Fprintf(&page, " | %s", f.name)
	}
	table := "| way | step" + page.String() + " |\n|" + strings.Repeat(" --- |", len(faults)+2) + "\n"
	for _, step := range steps {
		for _, way := range step.ways {
			name := string(way)
			if step.op == "git/get-ref" || !strings.HasPrefix(step.op, "git") {
				name = "both" // what comes before and after the branch is the same code
			}
			table += "| " + name + " | " + step.name
			for _, f := range faults {
				cell := cells[step.op+string(way)+f.name]
				if cell == "" {
					cell = "—"
				}
				table += " | " + cell
			}
			table += " |\n"
		}
	}
	pageSection(t, "delivery.md", "faults", table)
}

// TestDeliveryCalls counts what a delivery costs, by its size and way.
func TestDeliveryCalls(t *testing.T) {
	sizes := []int{10, 1000}
	rows := make([]string, 2*len(sizes))
	t.Run("cells", func(t *testing.T) {
		for i, files := range sizes {
			for j, way := range []Way{ViaGit, ViaAPI} {
				t.Run(fmt.Sprint(files, " ", way), func(t *testing.T) {
					t.Parallel()
					b := newBench(t)
					for n := range files {
						b.write(fmt.Sprintf("many/%d/f.txt", n), fmt.Sprint("text ", n))
					}
					b.commit("many")
					seen := len(b.Log().All())
					got, err := b.deliver(func(d *Delivery) {
						d.Bounds.MaxFiles = 2000
						if way == ViaAPI {
							b.byAPI(d)
						}
					})
					if err != nil {
						t.Fatal(err)
					}
					b.checkDelivered(got)
					calls := map[string]int{}
					for _, r := range b.Log().All()[seen:] {
						calls[r.Group]++
					}
					rows[2*i+j] = fmt.Sprintf("| %d | %s | %d | %d | %d |\n", files, way, b.execs.Load(), calls[hub.GroupREST], calls[hub.GroupGit])
				})
			}
		}
	})
	if slices.Contains(rows, "") {
		return // only some of them were run
	}
	pageSection(t, "delivery.md", "calls", "| changed files | way | commands in the sandbox | REST requests | requests of git |\n| --- | --- | --- | --- | --- |\n"+strings.Join(rows, ""))
}

// pageSection holds that a part of a page in docs/reference, between two marks, is as given; with -update it writes it.
func pageSection(t *testing.T, file, section, want string) {
	t.Helper()
	where := page.Between("<!-- generated: "+section+" -->\n", "<!-- end: "+section+" -->\n")
	page.Holds(t, filepath.Join("..", "docs", "reference", file), where, want, *update)
}

// aborted tells whoever waits for a lost answer that it is lost: what was asked is done, and nobody heard of it.
func (b *bench) aborted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				if cancel := b.onAbort.Load(); cancel != nil {
					(*cancel)()
				}
				panic(p)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
