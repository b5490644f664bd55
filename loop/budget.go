package loop

import (
	"fmt"
	"slices"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/prices"
)

// price says what the usage of a session of the configured agent costs. The CLI's own reckoning counts where it has one.
// The models whose price is not known are returned.
func (r *run) price(u agent.Usage) (usd float64, unpriced []string) {
	if u.CostUSD > 0 {
		return u.CostUSD, nil
	}
	models := u.Models
	if len(models) == 0 && u.Input+u.Output > 0 {
		models = map[string]agent.ModelUsage{r.req.Config.Agent.Model: {Input: u.Input, CachedInput: u.CachedInput, Written: u.Written, WrittenHour: u.WrittenHour, Output: u.Output, Calls: u.ModelCalls}}
	}
	for name, m := range models {
		cost, known := r.prices.Cost(name, prices.Tokens{Input: m.Input, Cached: m.CachedInput, Written: m.Written, Hour: m.WrittenHour, Output: m.Output, Calls: m.Calls})
		if !known && name == "" {
			name = "the agent's own choice"
		}
		if !known {
			unpriced = append(unpriced, name)
		}
		usd += cost
	}
	slices.Sort(unpriced)
	return usd, unpriced
}

// spent adds up what the sessions of the run cost, and the one that is under way: by the gateway's count where there is one, else
// by the CLI's own.
func (r *run) spent(turns int, u agent.Usage) events.Spent {
	cost, unpriced := r.price(u)
	sum := events.Spent{Turns: turns, Input: u.Input, Cached: u.CachedInput, Output: u.Output, PremiumRequests: u.PremiumRequests, CostUSD: cost, BlockedHosts: r.blockedHosts}
	for _, s := range r.state.Sessions {
		sum.Turns += s.Turns
		sum.Input += s.Input
		sum.Cached += s.Cached
		sum.Output += s.Output
		sum.PremiumRequests += s.Usage.PremiumRequests
		sum.CostUSD += s.CostUSD
		unpriced = append(unpriced, s.Unpriced...)
	}
	slices.Sort(unpriced)
	sum.Unpriced = slices.Compact(unpriced)
	r.counted(&sum)
	return sum
}

// over says which limit is reached, or nothing.
func (r *run) over(s events.Spent) string {
	l := r.req.Config.Limits
	switch {
	case l.Turns > 0 && s.Turns >= l.Turns:
		return fmt.Sprintf("limits.turns (%d) is reached", l.Turns)
	case l.Tokens > 0 && s.Input+s.Output >= int64(l.Tokens):
		return fmt.Sprintf("limits.tokens (%d) is reached: %d", l.Tokens, s.Input+s.Output)
	case l.Cost > 0 && s.CostUSD >= l.Cost:
		return fmt.Sprintf("limits.cost (%.2f dollars) is reached: %.2f", l.Cost, s.CostUSD)
	case l.Cost > 0 && len(s.Unpriced) > 0:
		return fmt.Sprintf("limits.cost cannot be held: there is no price for %s in the table %s; add one (prices)", list(s.Unpriced, 3), r.prices.Version)
	}
	return ""
}
