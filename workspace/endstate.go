package workspace

import (
	"time"
)

// EndState is what the agent left, checked. It is plain data.
type EndState struct {
	Base  string `json:"base"`  // the commit it started from
	Head  string `json:"head"`  // the last commit; Base if nothing changed
	Empty bool   `json:"empty"` // nothing changed: no commit, or commits whose files equal the base's

	Commits        []Commit `json:"commits"`                   // oldest first
	Files          []File   `json:"files"`                     // base against head
	FilesTruncated bool     `json:"files_truncated,omitempty"` // there are more than MaxFiles; TotalFiles says how many
	TotalFiles     int      `json:"total_files"`
	Patch          []byte   `json:"patch,omitempty"` // git's binary patch, base against head
	PatchTruncated bool     `json:"patch_truncated,omitempty"`
	Additions      int      `json:"additions"` // lines
	Deletions      int      `json:"deletions"`

	Submodules   []string `json:"submodules,omitempty"`    // paths that are, or become, links to other repositories
	Ignored      int      `json:"ignored"`                 // paths that .gitignore keeps out (a folder counts once); by the sandbox's word
	IgnoredPaths []string `json:"ignored_paths,omitempty"` // the first of them
	Pushed       []Push   `json:"pushed,omitempty"`        // what the agent pushed to the local origin of ModeTracked; by the sandbox's word
	Largest      Blob     `json:"largest,omitzero"`        // the biggest new object
	BundleSize   int64    `json:"bundle_size"`
	Notes        []string `json:"notes,omitempty"` // what a reader should know about how it was produced
}

// Push is a ref of the local origin that is not the base.
type Push struct {
	Ref     string `json:"ref"`
	SHA     string `json:"sha"`
	Commits int    `json:"commits"` // since the base
}

// Commit is one commit of the run. All text is the agent's.
type Commit struct {
	SHA         string    `json:"sha"`
	Parents     []string  `json:"parents,omitempty"`
	AuthorName  string    `json:"author_name,omitempty"`
	AuthorEmail string    `json:"author_email,omitempty"`
	AuthorDate  time.Time `json:"author_date"`
	Subject     string    `json:"subject,omitempty"`
	Body        string    `json:"body,omitempty"`  // cut at 64 KiB
	Paths       []string  `json:"paths,omitempty"` // changed in it, both sides of a rename; cut at MaxFiles
}

// Status is how a file changed.
type Status string

// What can happen to a file. A renamed file may have changed as well; a type change is one from file to link and the like.
const (
	Added       Status = "A"
	Modified    Status = "M"
	Deleted     Status = "D"
	Renamed     Status = "R"
	TypeChanged Status = "T"
)

// File is one changed file.
type File struct {
	Path       string `json:"path"`
	OldPath    string `json:"old_path,omitempty"` // before a rename, else ""
	Status     Status `json:"status"`
	Mode       string `json:"mode,omitempty"`     // git's: 100644, 100755, 120000, 160000; "" for a deleted file
	OldMode    string `json:"old_mode,omitempty"` // "" for an added file
	Additions  int    `json:"additions"`          // lines; 0 if Binary
	Deletions  int    `json:"deletions"`
	Binary     bool   `json:"binary,omitempty"`
	Size       int64  `json:"size"`                  // bytes of the new content
	LinkTarget string `json:"link_target,omitempty"` // of a symbolic link
}
