package vault

import (
	"bytes"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/dozehq/doze/internal/testkit/bucket"
)

// TestChunk: what the key encrypted for a name must have the content of that name, too.
func TestChunk(t *testing.T) {
	t.Parallel()
	srv := bucket.Serve(t)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	client, err := minio.New(u.Host, &minio.Options{Creds: credentials.NewFileAWSCredentials(srv.Credentials, "default"), Region: "us-east-1", BucketLookup: minio.BucketLookupPath})
	if err != nil {
		t.Fatal(err)
	}
	v, err := New(client, strings.Trim(u.Path, "/"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSealer("a", Key{[keyBytes]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := v.loading.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.loading.free(b)
	text := []byte("content")
	for content, want := range map[string]error{"content": nil, "another": ErrDamaged, "longer than that": ErrDamaged} {
		c := chunk{s.name(text), newMark(1)}
		if err := v.put(t.Context(), v.key("a", kindChunk, c.String()), s.sealChunk(v.packed(b, []byte(content)), c), false); err != nil {
			t.Fatal(err)
		}
		if got, err := v.chunk(t.Context(), s, b, c, len(text)); !errors.Is(err, want) || err == nil && !bytes.Equal(got, text) {
			t.Errorf("%s: %q, %v", content, got, err)
		}
	}
}
