package fleet

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
)

// Files of copies in the bucket that say which shared files the copy needs. A machine and a snapshot have a
// NeedsFile. An image that was built or loaded has a BuiltFile.
const (
	NeedsFile = "needs.json"
	BuiltFile = "image.json"
)

var (
	fileNameForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)
	fileSumForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	fileMarkForm = regexp.MustCompile(`^([0-9a-f]{16})?$`)
)

// FileNeed is a shared file that a copy needs. Its content is the same everywhere, or it is
// another one. The memory of a machine has parts of it, by their places in the file.
type FileNeed struct {
	Name string `json:"name"` // of the file
	Sum  string `json:"sum"`  // SHA-256, hexadecimal
	// Mark is that of the upload which the copy relies on, from [Control.FileMark]. It is empty in
	// copies of earlier releases, whose uploads had none.
	Mark string `json:"mark,omitempty"`
}

// Check is an error for a file that nobody can name.
func (n FileNeed) Check() error {
	if !fileNameForm.MatchString(n.Name) || !fileSumForm.MatchString(n.Sum) || !fileMarkForm.MatchString(n.Mark) {
		return fmt.Errorf("the copy needs a file that nobody can name: %.80q", n.Name)
	}
	return nil
}

// Label is what control makes the key of the file of. It names the content, so only a node that has the
// file, or a copy that needs it, can ask for the key.
func (n FileNeed) Label() string { return "file-" + n.Sum }

// Object is the name in the bucket of the upload that the copy relies on. key is the key of the file.
func (n FileNeed) Object(key []byte) string { return FileObject(key, n.Mark) }

// FileObject is the name in the bucket of one upload of a file. It follows from the key of the file, so
// the bucket's list helps nobody to ask for one.
func FileObject(key []byte, mark string) string {
	name := hmac.New(sha256.New, key)
	_, _ = name.Write([]byte("name in the bucket" + mark)) // it never fails
	return "file-" + hex.EncodeToString(name.Sum(nil))
}

// NeedsOf returns the shared files that a copy needs, of what its NeedsFile or BuiltFile says. What a newer
// release may need besides is an error: nobody knows then which files are needed.
func NeedsOf(raw []byte) (all []FileNeed, err error) {
	var says struct {
		Root    *FileNeed       `json:"root"`
		Agent   *FileNeed       `json:"agent"`
		Volumes json.RawMessage `json:"volumes"`
		Record  json.RawMessage `json:"record"`
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&says); err != nil {
		return nil, fmt.Errorf("what the copy needs cannot be read: %w", err)
	}
	for _, n := range []*FileNeed{says.Root, says.Agent} {
		if n == nil {
			continue
		}
		if err := n.Check(); err != nil {
			return nil, err
		}
		all = append(all, *n)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the copy does not say what it needs")
	}
	return all, nil
}
