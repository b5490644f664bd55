package sbx

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
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
	return showing(out, readTemplates, checkTemplates)
}

func readTemplates(out []byte) ([]Template, error) {
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
		list := make([]Template, 0, len(doc.Images))
		for _, image := range doc.Images {
			t := image.Template
			t.Created = image.CreatedAt.Time
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
		return nil, malformed("no template listing")
	}
	list := []Template{}
	for _, t := range tables {
		for _, row := range t.rows {
			list = append(list, Template{ID: row.text("id"), Repository: row.text("repository"), Tag: row.text("tag"), Flavor: row.text("flavor")})
		}
	}
	return list, nil
}

var imageRef = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$`)

// is reports whether t is the image that ref names: by tag, where a listing may put a registry and a library before a short
// name, or by id.
func (t Template) is(ref string) bool {
	if hexID.MatchString(ref) && t.ID != "" && (strings.HasPrefix(ref, t.ID) || strings.HasPrefix(t.ID, ref)) {
		return true
	}
	repository, tag := ref, "latest"
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		repository, tag = ref[:i], ref[i+1:]
	}
	return t.Tag == tag && (t.Repository == repository || strings.HasSuffix(t.Repository, "/"+repository))
}

var hexID = regexp.MustCompile(`^[0-9a-f]{12,64}$`)

// find gives the images of list that ref names.
func find(list []Template, ref string) (found []Template) {
	for _, t := range list {
		if t.is(ref) {
			found = append(found, t)
		}
	}
	return found
}

// TemplateSave makes an image of a sandbox, which must be stopped, and with file not empty writes it there as a tar too. An
// image holds whatever was written in the sandbox, keys included. It reads back that the tag is listed, for an image made
// now if it was there before, and that the file was written.
func (c *Client) TemplateSave(ctx context.Context, sandbox, tag, file string) error {
	const op = "template save"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return err
	}
	if !imageRef.MatchString(tag) || strings.Contains(tag, "@") {
		return invalid(op, "tag %q", tag)
	}
	args := []string{"template", "save", sandbox, tag}
	var fileBefore os.FileInfo
	if file != "" {
		abs, err := filepath.Abs(file)
		if err != nil {
			return fmt.Errorf("sbx %s: %w", op, err)
		}
		file = abs
		args = append(args, "--output="+file)
		fileBefore, _ = os.Stat(file)
	}
	var before []Template
	if c.readBack {
		list, err := c.TemplateList(ctx)
		if err != nil {
			return err
		}
		before = find(list, tag)
	}
	begun := time.Now().Truncate(time.Second)
	if _, err := c.call(ctx, op, c.timeouts.Template, Cmd{Args: args}); err != nil || !c.readBack {
		return err
	}
	list, err := c.TemplateList(ctx)
	if err != nil {
		return err
	}
	var missing []string
	switch now := find(list, tag); {
	case len(now) == 0:
		missing = append(missing, fmt.Sprintf("template %s is not in the listing", tag))
	case slices.Equal(now, before) && now[0].Created.Before(begun):
		// The same content may give the same id, but not the time of before. Listings have whole seconds.
		missing = append(missing, fmt.Sprintf("template %s is the one of before", tag))
	}
	if file != "" {
		switch info, err := os.Stat(file); {
		case err != nil:
			missing = append(missing, fmt.Sprintf("the file was not written: %v", err))
		case !info.Mode().IsRegular() || info.Size() == 0:
			missing = append(missing, fmt.Sprintf("the file %s is empty", file))
		case fileBefore != nil && os.SameFile(info, fileBefore) && info.ModTime().Equal(fileBefore.ModTime()):
			missing = append(missing, fmt.Sprintf("the file %s is the one of before", file))
		}
	}
	return notApplied(op, missing...)
}

// TemplateLoad reads an image from a tar file, and reads back that every tag that the file has is listed, or if it has none, that
// the listing has an image more.
func (c *Client) TemplateLoad(ctx context.Context, file string) error {
	const op = "template load"
	if file == "" || strings.HasPrefix(file, "-") {
		return invalid(op, "file %q", file)
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	tags, err := archiveTags(abs)
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	var before []Template
	if c.readBack && len(tags) == 0 {
		if before, err = c.TemplateList(ctx); err != nil {
			return err
		}
	}
	if _, err := c.call(ctx, op, c.timeouts.Template, Cmd{Args: []string{"template", "load", abs}}); err != nil || !c.readBack {
		return err
	}
	list, err := c.TemplateList(ctx)
	if err != nil {
		return err
	}
	var missing []string
	for _, tag := range tags {
		if len(find(list, tag)) == 0 {
			missing = append(missing, fmt.Sprintf("template %s is not in the listing", tag))
		}
	}
	if len(tags) == 0 && len(list) <= len(before) {
		missing = append(missing, fmt.Sprintf("no template came from %s", file))
	}
	return notApplied(op, missing...)
}

// maxManifest bounds what is read of an archive's manifest.
const maxManifest = 1 << 20

// archiveTags gives the tags in an archive as docker save writes it, or none for one of another form.
func archiveTags(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for archive := tar.NewReader(f); ; { // it seeks over the layers
		h, err := archive.Next()
		if err != nil { // the end, or another form
			return nil, nil
		}
		if path.Clean(h.Name) != "manifest.json" {
			continue
		}
		var manifest []struct{ RepoTags []string }
		if json.NewDecoder(io.LimitReader(archive, maxManifest)).Decode(&manifest) != nil {
			return nil, nil
		}
		var tags []string
		for _, image := range manifest {
			tags = append(tags, image.RepoTags...)
		}
		return tags, nil
	}
}

// TemplateRemove removes an image by tag or id, and reads back that it is gone. That there is none is success.
func (c *Client) TemplateRemove(ctx context.Context, ref string) error {
	const op = "template rm"
	if !imageRef.MatchString(ref) {
		return invalid(op, "image %q", ref)
	}
	_, err := c.changeForced(ctx, op, "--force", "template", "rm", ref)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if !c.readBack {
		return nil
	}
	list, err := c.TemplateList(ctx)
	if err != nil {
		return err
	}
	if left := find(list, ref); len(left) > 0 {
		return notApplied(op, fmt.Sprintf("template %s:%s is still there", left[0].Repository, left[0].Tag))
	}
	return nil
}
