package sbx

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Inspection is what an engine tells of one sandbox. Fields that a version leaves out are empty.
type Inspection struct {
	Name          string             `json:"name"`
	Agent         string             `json:"agent,omitempty"`
	State         Status             `json:"state,omitempty"`
	Image         string             `json:"image,omitempty"`
	ImageDigest   string             `json:"image_digest,omitempty"`
	Workspace     string             `json:"workspace,omitempty"`
	NetworkScope  string             `json:"network_scope,omitempty"` // of the policy in force, such as "global"
	Secrets       []InspectionSecret `json:"secrets,omitempty"`
	Ports         []Port             `json:"ports,omitempty"`
	Sessions      int                `json:"sessions"`
	DaemonVersion Semver             `json:"daemon_version,omitzero"`
}

// InspectionSecret names a secret that a sandbox is bound to.
type InspectionSecret struct {
	Name   string `json:"name"`
	Source string `json:"source"` // such as "custom"
}

// Inspect describes one sandbox (sbx 0.35). The error matches [ErrNotFound] if there is none.
func (c *Client) Inspect(ctx context.Context, name string) (Inspection, error) {
	const op = "inspect"
	if err := checkNames(op, []string{name}); err != nil {
		return Inspection{}, err
	}
	out, err := c.read(ctx, op, "inspect", name)
	if err != nil {
		return Inspection{}, err
	}
	in, err := ParseInspection(out)
	if err == nil && in.Name != name {
		err = malformedIn(out, "asked for %q, got %q", name, in.Name)
	}
	if err != nil {
		return Inspection{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return in, nil
}

// ParseInspection reads the output of "sbx inspect", JSON or text.
func ParseInspection(out []byte) (Inspection, error) {
	return showing(out, readInspection, checkInspection)
}

func readInspection(out []byte) (Inspection, error) {
	if looksJSON(out) {
		return parseInspectionJSON(out)
	}
	in, text := Inspection{}, clean(out)
	if said := firstSpoiling(text); said != "" {
		return Inspection{}, spoilt(said)
	}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			in.Name = value
		case "Agent":
			in.Agent = value
		case "State":
			word, _, _ := strings.Cut(value, " ")
			in.State = parseStatus(word)
		case "Image":
			in.Image = value
		case "Image digest":
			in.ImageDigest = value
		case "Workspace":
			in.Workspace = value
		case "Network Policy":
			in.NetworkScope, _, _ = strings.Cut(value, " ")
		case "Secrets":
			for part := range strings.SplitSeq(value, ",") {
				name, source, _ := strings.Cut(strings.TrimSpace(part), " ")
				if name != "" && name != "none" {
					in.Secrets = append(in.Secrets, InspectionSecret{name, strings.Trim(source, "()")})
				}
			}
		case "Ports":
			if value == "none published" {
				continue
			}
			ports, err := parsePortsCell(value)
			if err != nil {
				return Inspection{}, err
			}
			in.Ports = ports
		case "Sessions":
			word, _, _ := strings.Cut(value, " ")
			n, err := strconv.Atoi(word)
			if err != nil {
				return Inspection{}, malformed("sessions %q", tailText(value, 40))
			}
			in.Sessions = n
		case "Daemon":
			in.DaemonVersion = ParseSemver(value)
		}
	}
	if in.Name == "" {
		return Inspection{}, malformed("no description of a sandbox")
	}
	return in, nil
}

func parseInspectionJSON(out []byte) (Inspection, error) {
	var doc struct {
		Name          string `json:"name"`
		Agent         string `json:"agent"`
		State         string `json:"state"`
		Status        string `json:"status"`
		Image         string `json:"image"`
		ImageDigest   string `json:"image_digest"`
		Workspace     string `json:"workspace"`
		NetworkPolicy struct {
			Scope string `json:"scope"`
		} `json:"network_policy"`
		Secrets       []InspectionSecret `json:"secrets"`
		Ports         []string           `json:"ports"`
		Sessions      int                `json:"sessions"`
		DaemonVersion string             `json:"daemon_version"`
	}
	if err := decodeJSON(out, "name", &doc); err != nil {
		return Inspection{}, err
	}
	if doc.State == "" {
		doc.State = doc.Status
	}
	in := Inspection{
		Name: doc.Name, Agent: doc.Agent, State: parseStatus(doc.State), Image: doc.Image, ImageDigest: doc.ImageDigest,
		Workspace: doc.Workspace, NetworkScope: doc.NetworkPolicy.Scope, Secrets: doc.Secrets, Sessions: doc.Sessions,
	}
	if doc.DaemonVersion != "" {
		in.DaemonVersion = ParseSemver(doc.DaemonVersion)
	}
	for _, cell := range doc.Ports {
		ports, err := parsePortsCell(cell)
		if err != nil {
			return Inspection{}, err
		}
		in.Ports = append(in.Ports, ports...)
	}
	return in, nil
}
