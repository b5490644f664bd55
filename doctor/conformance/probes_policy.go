package conformance

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
)

// Hosts of the policy questions. The top-level names are reserved (RFC 2606), so that no preset opens them.
const (
	hostExact = "exact.sbxpair.example"
	hostWild  = "wild.sbxpair.example"
	hostDeep  = "deep.sbxpair.example"
	hostPort  = "port.sbxpair.example"
	hostDeny  = "deny.sbxpair.example"
)

// allow adds rules of the first sandbox.
func (s *session) allow(ctx context.Context, decision, resources string) (string, error) {
	res, err := s.call(ctx, "policy", decision, "network", "--sandbox", s.First, resources)
	if err != nil {
		return "", err
	}
	return that(res.Code == 0, "policy %s %s: exit code %d: %.160q", decision, resources, res.Code, res.Stderr), nil
}

// decided asks the engine for its verdict about targets of the first sandbox: "+host" has to be allowed, "-host" denied.
func (s *session) decided(ctx context.Context, targets ...string) (string, error) {
	var wrong []string
	for _, target := range targets {
		res, err := s.call(ctx, "policy", "check", "network", "--sandbox", s.First, "--json", target[1:])
		if err != nil {
			return "", err
		}
		var v struct{ Allowed *bool }
		if err := json.Unmarshal(res.Stdout, &v); err != nil || v.Allowed == nil {
			return "no verdict about " + target[1:] + ": " + string(res.Stdout) + string(res.Stderr), nil
		}
		code := map[bool]int{true: 0, false: 1}[*v.Allowed]
		if *v.Allowed != (target[0] == '+') {
			wrong = append(wrong, target[1:]+map[bool]string{true: " is allowed", false: " is denied"}[*v.Allowed])
		}
		if res.Code != code {
			wrong = append(wrong, target[1:]+": the exit code contradicts the verdict")
		}
	}
	return strings.Join(wrong, ", "), nil
}

// ruled adds a rule and then asks for verdicts.
func ruled(decision, resources string, targets ...string) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		if bad, err := s.allow(ctx, decision, resources); bad != "" || err != nil {
			return bad, err
		}
		return s.decided(ctx, targets...)
	}
}

func policyProbes() []probe {
	return []probe{
		{"policy.default", "without a rule a host is denied: exit 1, and the JSON on standard output says implicit", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "check", "network", "--sandbox", s.First, "--json", hostExact)
			if err != nil {
				return "", err
			}
			var v struct {
				Allowed         bool
				Action, Context string
				Target, Type    string
				DenyKind        string `json:"deny_kind"`
				ResourceType    string `json:"resource_type"`
			}
			if bad := document(res, &v); bad != "" {
				return bad, nil
			}
			return all(that(res.Code == 1 && !v.Allowed, "exit code %d, allowed %v", res.Code, v.Allowed), that(v.DenyKind == "implicit", "deny_kind %q", v.DenyKind),
				that(v.Context == "sandbox:"+s.First, "context %q", v.Context), that(v.Target == hostExact+":443", "target %q", v.Target),
				that(v.Action == "net:connect:tcp" && v.ResourceType == "net:domain" && v.Type == "network", "action %q, resource_type %q, type %q", v.Action, v.ResourceType, v.Type)), nil
		}},
		{"policy.check.text", "policy check without --json: Denied: HOST, exit 1", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "check", "network", "--sandbox", s.First, hostExact)
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "Denied: "+hostExact, ""), nil
		}},
		{"policy.allow", "policy allow network --sandbox N HOST: Rule added to policy local (scope: sandbox:N): UUID (HOST [tcp])", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "allow", "network", "--sandbox", s.First, hostExact)
			if err != nil {
				return "", err
			}
			line := regexp.MustCompile(`^Rule added to policy local \(scope: sandbox:` + regexp.QuoteMeta(s.First) + `\): [0-9a-f-]{36} \(` + regexp.QuoteMeta(hostExact) + ` \[tcp\]\)\n`)
			return all(that(res.Code == 0, "exit code %d", res.Code), that(line.Match(res.Stdout), "%.200q", res.Stdout)), nil
		}},
		{"policy.exact", "a plain name does not cover names below it; without a port, every port", box, func(ctx context.Context, s *session) (string, error) {
			return s.decided(ctx, "+"+hostExact, "+"+hostExact+":8443", "-sub."+hostExact)
		}},
		{"policy.wildcard", "*.HOST covers one label, not two, and not HOST itself", box, ruled("allow", "*."+hostWild, "+a."+hostWild, "-a.b."+hostWild, "-"+hostWild)},
		{"policy.wildcard.deep", "**.HOST covers any depth", box, ruled("allow", "**."+hostDeep, "+a."+hostDeep, "+a.b.c."+hostDeep)},
		{"policy.port", "HOST:8443 covers that port only", box, ruled("allow", hostPort+":8443", "+"+hostPort+":8443", "-"+hostPort)},
		{"policy.list", "several hosts are one argument with commas", box, ruled("allow", "one."+hostPort+",two."+hostPort, "+one."+hostPort, "+two."+hostPort)},
		{"policy.second", "a second resource is refused: the sandbox name is no longer positional", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "allow", "network", hostExact, "x."+hostExact)
			if err != nil {
				return "", err
			}
			return all(that(res.Code == 1, "exit code %d", res.Code), that(len(res.Stdout) == 0, "standard output %.80q", res.Stdout)), nil
		}},
		{"policy.deny", "deny beats allow, whatever is the more specific", box, func(ctx context.Context, s *session) (string, error) {
			for _, rule := range [][2]string{{"deny", "**." + hostDeny}, {"allow", "a." + hostDeny}} {
				if bad, err := s.allow(ctx, rule[0], rule[1]); bad != "" || err != nil {
					return bad, err
				}
			}
			return s.decided(ctx, "-a."+hostDeny, "-b."+hostDeny)
		}},
		{"policy.deny.explicit", "a verdict by a deny rule says explicit", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "check", "network", "--sandbox", s.First, "--json", "a."+hostDeny)
			if err != nil {
				return "", err
			}
			var v struct {
				DenyKind string `json:"deny_kind"`
			}
			return all(document(res, &v), that(v.DenyKind == "explicit", "deny_kind %q", v.DenyKind)), nil
		}},
		{"policy.conflict", "a deny of what is allowed in the same scope: exit 1, conflicts with existing allow rule", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "deny", "network", "--sandbox", s.First, hostExact)
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "", "conflicts with existing allow rule"), nil
		}},
		{"policy.star", "a lone * is refused", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "allow", "network", "--sandbox", s.First, "*")
			if err != nil {
				return "", err
			}
			return that(res.Code == 1, "exit code %d", res.Code), nil
		}},
		{"policy.cidr", "addresses in CIDR form, both families", box | real, ruled("allow", "198.51.100.0/24,2001:db8::/32", "+198.51.100.7", "-198.51.101.7", "+[2001:db8::7]:443", "-[2001:db9::7]:443")},
		{"policy.scope", "a rule of one sandbox is none of another", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "check", "network", "--sandbox", s.Second, hostExact)
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "Denied: "+hostExact, ""), nil
		}},
		{"policy.scope.missing", "a rule for no sandbox: exit 1, sandbox \"N\" not found", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "allow", "network", "--sandbox", nobody, hostExact)
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "", `sandbox "`+nobody+`" not found`), nil
		}},
		{"policy.ls.missing", "policy ls of no sandbox answers with the global rules, exit 0", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "ls", nobody, "--json")
			if err != nil {
				return "", err
			}
			return that(res.Code == 0, "exit code %d: %.100q", res.Code, res.Stderr), nil
		}},
		{"policy.ls.json", "policy ls --json: rules with id, policy_id, scope, applies_to, resource_type, decision, resources, status, provenance", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "ls", "--json")
			if err != nil {
				return "", err
			}
			var list struct{ Rules []map[string]any }
			if bad := document(res, &list); bad != "" {
				return bad, nil
			}
			for _, rule := range list.Rules {
				resources, _ := rule["resources"].([]any)
				if len(resources) == 0 || resources[0] != hostExact {
					continue
				}
				var missing []string
				for _, key := range []string{"id", "policy_id", "scope", "applies_to", "resource_type", "decision", "resources", "status", "provenance"} {
					if _, there := rule[key]; !there {
						missing = append(missing, key)
					}
				}
				return all(that(missing == nil, "without %s", strings.Join(missing, ", ")), that(rule["decision"] == "allow" && rule["resource_type"] == "network", "decision %v, resource_type %v", rule["decision"], rule["resource_type"])), nil
			}
			return "the rule is not listed", nil
		}},
		{"policy.rm", "policy rm network --sandbox N --resource HOST: the rule is gone", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "rm", "network", "--sandbox", s.First, "--resource", hostExact, "--force")
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "exit code not 0: " + string(res.Stderr), nil
			}
			return s.decided(ctx, "-"+hostExact)
		}},
		{"policy.rm.missing", "policy rm of no rule: exit 1", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "rm", "network", "--sandbox", s.First, "--resource", "never."+hostExact, "--force")
			if err != nil {
				return "", err
			}
			return all(that(res.Code == 1, "exit code %d", res.Code), that(len(res.Stderr) > 0, "nothing on standard error")), nil
		}},
	}
}

func networkProbes() []probe {
	return []probe{
		{"block.https", "a denied host over https: the page comes inside TLS, status 403, curl ends with 0: Approval required for HOST:443.", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "curl", "-sS", "--max-time", "20", "-w", "\n%{http_code} %{http_connect} %{content_type}", "https://blocked.sbxpair.example/")
			if err != nil {
				return "", err
			}
			body, rest, _ := strings.Cut(string(res.Stdout), "\n403 200 text/plain")
			return all(that(res.Code == 0, "curl ends with %d: %.100q", res.Code, res.Stderr), that(rest == "" && strings.HasPrefix(body, "Approval required for blocked.sbxpair.example:443.\n\nReview and respond with:\n  sbx policy approval ls"), "%.200q", res.Stdout)), nil
		}},
		{"block.http", "the same over http", inside, func(ctx context.Context, s *session) (string, error) {
			status, body, err := s.fetch(ctx, s.First, "http://blocked.sbxpair.example/")
			if err != nil {
				return "", err
			}
			return all(that(status == "403", "status %s", status), holds("the page", []byte(body), "Approval required for blocked.sbxpair.example:80.")), nil
		}},
		{"block.deny", "by a deny rule the page says so", inside, func(ctx context.Context, s *session) (string, error) {
			status, body, err := s.fetch(ctx, s.First, "https://a."+hostDeny+"/")
			if err != nil {
				return "", err
			}
			return all(that(status == "403", "status %s", status), that(strings.HasPrefix(body, "Blocked by "), "%.160q", body)), nil
		}},
		{"block.direct", "past the proxy nothing answers: no name, no address", inside, func(ctx context.Context, s *session) (string, error) {
			for _, url := range []string{"https://blocked.sbxpair.example/", "http://192.0.2.1/"} {
				res, err := s.exec(ctx, "curl", "-sS", "--noproxy", "*", "--connect-timeout", "4", "--max-time", "6", "-o", "/dev/null", "-w", "%{http_code}", url)
				if err != nil {
					return "", err
				}
				if res.Code == 0 && string(res.Stdout) != "403" {
					return url + " answers " + string(res.Stdout), nil
				}
			}
			return "", nil
		}},
		{"host.denied", "host.docker.internal without a rule: 403", inside, func(ctx context.Context, s *session) (string, error) {
			status, _, err := s.fetch(ctx, s.First, "http://host.docker.internal:"+s.host.port()+"/")
			if err != nil {
				return "", err
			}
			return all(that(status == "403", "status %s", status), that(s.host.take() == nil, "the request arrived")), nil
		}},
		{"host.allowed", "host.docker.internal:PORT is this machine's loopback, by a rule for localhost:PORT; the Host header becomes localhost:PORT", inside, func(ctx context.Context, s *session) (string, error) {
			if bad, err := s.allow(ctx, "allow", "localhost:"+s.host.port()); bad != "" || err != nil {
				return bad, err
			}
			status, _, err := s.fetch(ctx, s.First, "http://host.docker.internal:"+s.host.port()+"/path?q=1")
			if err != nil {
				return "", err
			}
			req := s.host.take()
			if req == nil {
				return "the request did not arrive; status " + status, nil
			}
			return all(that(status == "200", "status %s", status), that(req.Host == "localhost:"+s.host.port(), "Host is %q", req.Host), that(req.URL.RequestURI() == "/path?q=1", "path %q", req.URL.RequestURI())), nil
		}},
		{"host.check", "policy check says denied for host.docker.internal all the same", inside, func(ctx context.Context, s *session) (string, error) {
			return s.decided(ctx, "-host.docker.internal:"+s.host.port())
		}},
		{"allow.acts", "an allow rule acts at once on a running sandbox, and so does its removal", upstream, func(ctx context.Context, s *session) (string, error) {
			if bad, err := s.allow(ctx, "allow", nameOpen+":443"); bad != "" || err != nil {
				return bad, err
			}
			status, _, err := s.fetch(ctx, s.First, "https://"+nameOpen+"/")
			if err != nil {
				return "", err
			}
			if _, err := s.call(ctx, "policy", "rm", "network", "--sandbox", s.First, "--resource", nameOpen+":443", "--force"); err != nil {
				return "", err
			}
			after, _, err := s.fetch(ctx, s.First, "https://"+nameOpen+"/")
			if err != nil {
				return "", err
			}
			return all(that(status == "200", "with the rule: status %s", status), that(after == "403", "without: status %s", after)), nil
		}},
		{"allow.tunnel", "a host without a secret is tunnelled: its own certificate arrives", upstream, func(ctx context.Context, s *session) (string, error) {
			if bad, err := s.allow(ctx, "allow", nameOpen+":443"); bad != "" || err != nil {
				return bad, err
			}
			res, err := s.exec(ctx, "sh", "-c", `curl -sSkv --max-time 20 "https://$1/" 2>&1 | grep -i 'issuer:'`, "sh", nameOpen)
			if err != nil {
				return "", err
			}
			return holds("the certificate", res.Stdout, "sbxpair conformance"), nil
		}},
		{"allow.path", "a rule for method and path: other paths and methods of the host are blocked (0.45)", upstream, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "allow", "network", "--sandbox", s.First, "--method", "GET", "--path", "/open/**", namePath)
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "policy allow: " + string(res.Stderr), nil
			}
			var got []string
			for _, ask := range [][]string{{"https://" + namePath + "/open/x"}, {"https://" + namePath + "/closed"}, {"https://" + namePath + "/open/x", "-X", "POST"}, {"https://" + namePath + "/open/../closed", "--path-as-is"}} {
				status, _, err := s.fetch(ctx, s.First, ask[0], ask[1:]...)
				if err != nil {
					return "", err
				}
				got = append(got, status)
			}
			return that(strings.Join(got, " ") == "200 403 403 403", "GET /open/x, GET /closed, POST /open/x, GET /open/../closed: %s", strings.Join(got, " ")), nil
		}},
		{"policy.log", "policy log --json: blocked_hosts and allowed_hosts with host:port, vm_name, proxy_type, rule, last_seen, since, count_since", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "log", s.First, "--json")
			if err != nil {
				return "", err
			}
			type entry struct {
				Host, Rule string
				VM         string `json:"vm_name"`
				Proxy      string `json:"proxy_type"`
				Last       string `json:"last_seen"`
				Since      string
				Count      int `json:"count_since"`
			}
			var log struct {
				Blocked []entry `json:"blocked_hosts"`
				Allowed []entry `json:"allowed_hosts"`
			}
			if bad := all(that(res.Code == 0, "exit code %d", res.Code), document(res, &log)); bad != "" {
				return bad, nil
			}
			for _, e := range log.Blocked {
				if e.Host == "blocked.sbxpair.example:443" {
					return all(that(e.VM == s.First, "vm_name %q", e.VM), that(e.Proxy == "forward", "proxy_type %q", e.Proxy), that(e.Last != "" && e.Since != "" && e.Count > 0, "last_seen %q, since %q, count_since %d", e.Last, e.Since, e.Count),
						that(strings.HasPrefix(e.Rule, "no applicable policies for op(action=net:connect:tcp"), "rule %.120q", e.Rule)), nil
				}
			}
			return "the blocked host is not in it", nil
		}},
	}
}
