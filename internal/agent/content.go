package agent

import (
	"io/fs"
	"net/http"

	"github.com/dozehq/doze"
)

// besideMax bounds a body without its content, which is held in memory.
const besideMax = 64 << 10

// fileWrite is the JSON body of a write.
type fileWrite struct {
	Content     string `json:"content"`
	IsDirectory bool   `json:"isDirectory"`
	Permissions string `json:"permissions"`
}

// mode returns the permissions of what is made with a content, or without. It
// adds what is wrong.
func (in fileWrite) mode(content bool, p *doze.Problems) fs.FileMode {
	without := fileMode
	if in.IsDirectory {
		without = dirMode
	}
	if in.IsDirectory && content {
		p.Add("content", "is for files; leave out content, or isDirectory")
	}
	perm, err := parseMode(in.Permissions, without)
	if err != nil {
		*p = append(*p, doze.Public(err).Message)
	}
	return perm
}

// contentBody is the body of a write: Read returns what its member content says.
// After the end, asked and perm are what else is in it.
type contentBody struct {
	textBody
	asked fileWrite // without its content
	perm  fs.FileMode
	seen  bool // the content has begun
}

// contentOf begins to read the body of a write. It is TooLarge if its sender says so.
func contentOf(w http.ResponseWriter, r *http.Request) (*contentBody, error) {
	c := newContent()
	return c, c.open(w, r)
}

func newContent() *contentBody {
	c := &contentBody{textBody: textBody{at: []string{"content"}, most: besideMax}}
	c.begin, c.finish = c.once, c.understand
	return c
}

// once is called when the content begins.
func (c *contentBody) once(string, int64) error {
	if c.seen {
		return doze.Errorf(doze.Invalid, "the body has content twice; send it once")
	}
	c.seen = true
	return nil
}

// understand reads what is beside the content.
func (c *contentBody) understand(beside []byte) (err error) {
	var p doze.Problems
	if c.asked, p, err = read[fileWrite](beside); err == nil {
		c.perm = c.asked.mode(c.size() > 0, &p)
		err = p.Err()
	}
	return err
}
