package sbx

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Template is an image that sandboxes are made from.
type Template struct {
	ID         string    `json:"id"` // 12 hexadecimal digits
	Repository string    `json:"repository"`
	Tag        string    `json:"tag"`
	Flavor     string    `json:"flavor,omitempty"`
	Created    time.Time `json:"created,omitzero"` // UTC; zero if not told
	Size       int64     `json:"size,omitempty"`   // bytes; 0 if not told
}

// TemplateList lists the images on this machine.
func (c *Client) TemplateList(ctx context.Context) ([]Template, error) {
	const op = "template ls"
	out, err := c.read(ctx, op, "template", "ls")
	if err != nil {
		return nil, err
	}
	list, err := ParseTemplates(out)
	if err != nil {
		return nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	return list, nil
}

// ParseTemplates reads the output of "sbx template ls", JSON or text.
func ParseTemplates(out []byte) ([]Template, error) {
	if looksJSON(out) {
		var doc struct {
			Images []struct {
				Template
				CreatedAt looseTime `json:"created_at"`
			} `json:"images"`
		}
		if err := decodeJSON(out, "images", &doc); err != nil {
			return nil, err
		}
		if doc.Images == nil {
			return nil, malformed("null for a list of images")
		}
		list := make([]Template, 0, len(doc.Images))
		for _, image := range doc.Images {
			t := image.Template
			t.Created = image.CreatedAt.Time
			if t.Repository == "" || strings.HasPrefix(t.Repository, "-") {
				return nil, malformed("image without a name")
			}
			list = append(list, t)
		}
		return list, nil
	}
	spec := tableSpec{
		columns: []column{
			{id: "repository", names: []string{"REPOSITORY"}, word: true}, {id: "tag", names: []string{"TAG"}, word: true},
			{id: "id", names: []string{"IMAGE ID"}, word: true}, {id: "flavor", names: []string{"FLAVOR"}, word: true},
			{id: "created", names: []string{"CREATED"}}, {id: "size", names: []string{"SIZE"}},
		},
		must: []string{"repository", "tag", "id"},
		row:  []string{"repository", "id"},
	}
	tables, notes, err := parseTables(clean(out), spec)
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 && !anyLine(notes, func(l string) bool { return strings.HasPrefix(l, "No template images found") }) {
		return nil, malformed("no template listing in %d bytes", len(out))
	}
	list := []Template{}
	for _, t := range tables {
		for _, row := range t.rows {
			if strings.HasPrefix(row.text("repository"), "-") {
				return nil, malformed("image named like a flag")
			}
			list = append(list, Template{ID: row.text("id"), Repository: row.text("repository"), Tag: row.text("tag"), Flavor: row.text("flavor")})
		}
	}
	return list, nil
}

var imageRef = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$`)

// TemplateSave makes an image of a sandbox, which must be stopped, and with file not empty writes it there as a tar too. An
// image holds whatever was written in the sandbox, keys included.
func (c *Client) TemplateSave(ctx context.Context, sandbox, tag, file string) error {
	const op = "template save"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return err
	}
	if !imageRef.MatchString(tag) {
		return invalid(op, "tag %q", tag)
	}
	args := []string{"template", "save", sandbox, tag}
	if file != "" {
		args = append(args, "--output="+file)
	}
	_, err := c.call(ctx, op, c.timeouts.Template, Cmd{Args: args})
	return err
}

// TemplateLoad reads an image from a tar file.
func (c *Client) TemplateLoad(ctx context.Context, file string) error {
	const op = "template load"
	if file == "" || strings.HasPrefix(file, "-") {
		return invalid(op, "file %q", file)
	}
	_, err := c.call(ctx, op, c.timeouts.Template, Cmd{Args: []string{"template", "load", file}})
	return err
}

// TemplateRemove removes an image by tag or id. That there is none is success.
func (c *Client) TemplateRemove(ctx context.Context, ref string) error {
	const op = "template rm"
	if !imageRef.MatchString(ref) {
		return invalid(op, "image %q", ref)
	}
	_, err := c.changeForced(ctx, op, "--force", "template", "rm", ref)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
