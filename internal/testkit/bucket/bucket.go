// Package bucket is an S3 server for tests, with one bucket.
package bucket

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// Secret is the secret access key of the credentials: what no sandbox may have.
const Secret = "canary-of-the-bucket-7f3a91"

const name = "drives"

// Bucket is a server.
type Bucket struct {
	URL         string // of the bucket
	Credentials string // file with credentials for it

	backend gofakes3.Backend
	server  *httptest.Server
}

// Open starts a server with an empty bucket, and puts its credentials into a directory.
func Open(dir string) (*Bucket, error) {
	backend := s3mem.New()
	if err := backend.CreateBucket(name); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = drives\naws_secret_access_key = %s\n", Secret)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	return &Bucket{URL: srv.URL + "/" + name, Credentials: file, backend: backend, server: srv}, nil
}

// Close ends the server.
func (b *Bucket) Close() { b.server.Close() }

// Serve is Open until the end of a test.
func Serve(tb testing.TB) *Bucket {
	tb.Helper()
	b, err := Open(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.Close)
	return b
}

// Keys returns the keys of all objects, in order.
func (b *Bucket) Keys(tb testing.TB) (keys []string) {
	tb.Helper()
	list, err := b.backend.ListBucket(name, nil, gofakes3.ListBucketPage{})
	if err != nil {
		tb.Fatal(err)
	}
	for _, o := range list.Contents {
		keys = append(keys, o.Key)
	}
	return keys
}

// Put writes an object past everybody.
func (b *Bucket) Put(tb testing.TB, key, text string) {
	tb.Helper()
	about := map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}
	if _, err := b.backend.PutObject(name, key, about, strings.NewReader(text), int64(len(text)), nil); err != nil {
		tb.Fatal(err)
	}
}

// Remove removes an object past everybody.
func (b *Bucket) Remove(tb testing.TB, key string) {
	tb.Helper()
	if _, err := b.backend.DeleteObject(name, key); err != nil {
		tb.Fatal(err)
	}
}

// Text returns what an object has; false if there is none.
func (b *Bucket) Text(tb testing.TB, key string) (string, bool) {
	tb.Helper()
	o, err := b.backend.GetObject(name, key, nil)
	if err != nil {
		return "", false
	}
	text, err := io.ReadAll(o.Contents)
	if err := errors.Join(err, o.Contents.Close()); err != nil {
		tb.Fatal(err)
	}
	return string(text), true
}
