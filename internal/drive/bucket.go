package drive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// errorsMax is how many of many errors are told.
const errorsMax = 3

// Options say where drives are.
type Options struct {
	URL string // http(s)://<endpoint>/<bucket>
	// Credentials is a file in the form of ~/.aws/credentials, whose profile
	// "default" is used.
	Credentials string
	Region      string // of the bucket
	// Once has the client send each request once: its user knows when to send it again, and
	// for how long.
	Once bool
}

// Bucket is where all drives of a platform are.
type Bucket struct {
	client *minio.Client
	url    string
	name   string
}

// findTime is how long a start waits for the bucket.
const findTime = 5 * time.Second

// Find returns the bucket, or nil without a URL. One that does not answer may do so
// later.
func Find(ctx context.Context, o Options) (*Bucket, error) {
	if o.URL == "" {
		return nil, nil //nolint:nilnil // there are no drives
	}
	b, err := Open(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	if err := b.Check(ctx); err != nil {
		slog.Warn("a bucket cannot be used", "bucket", b.URL(), "err", err)
	}
	return b, nil
}

// keysLast is for how long credentials are used before their file is looked at again, which may
// have others by then.
const keysLast = 10 * time.Second

// A keyFile reads credentials. By itself, the client reads the file for each request, one after
// the other.
type keyFile struct {
	credentials.FileAWSCredentials

	read time.Time // the client guards it
}

// RetrieveWithCredContext implements [credentials.Provider].
func (k *keyFile) RetrieveWithCredContext(c *credentials.CredContext) (credentials.Value, error) {
	v, err := k.FileAWSCredentials.RetrieveWithCredContext(c)
	if err == nil {
		k.read = time.Now()
	}
	return v, err
}

// IsExpired implements [credentials.Provider].
func (k *keyFile) IsExpired() bool {
	return time.Since(k.read) > keysLast && k.FileAWSCredentials.IsExpired()
}

// Open returns the bucket of o. It reads the credentials and asks nobody.
func Open(o Options) (*Bucket, error) {
	u, name, err := Parse(o.URL)
	if err != nil {
		return nil, err
	}
	keys := credentials.New(&keyFile{FileAWSCredentials: credentials.FileAWSCredentials{Filename: o.Credentials, Profile: "default"}})
	if _, err := os.Stat(o.Credentials); err != nil {
		return nil, fmt.Errorf("the credentials of the bucket: %w", err)
	}
	if v, err := keys.GetWithContext(nil); err != nil || v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return nil, fmt.Errorf("the credentials of the bucket: %s needs a section [default] with aws_access_key_id and aws_secret_access_key", o.Credentials)
	}
	options := minio.Options{Creds: keys, Secure: u.Scheme == "https", Region: o.Region, BucketLookup: minio.BucketLookupPath}
	if o.Once {
		options.MaxRetries = 1
	}
	client, err := minio.New(u.Host, &options)
	if err != nil {
		return nil, fmt.Errorf("the bucket: %w", err)
	}
	return &Bucket{client, u.String(), name}, nil
}

// Parse splits the URL of a bucket.
func Parse(text string) (endpoint *url.URL, bucket string, err error) {
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, "", errors.New("a bucket must be a URL such as https://s3.example.com/bucket, without credentials")
	}
	bucket = strings.TrimPrefix(u.Path, "/")
	if bucket == "" || strings.Contains(bucket, "/") {
		return nil, "", errors.New("a bucket must be a URL whose path is the name of the bucket, such as https://s3.example.com/bucket")
	}
	return u, bucket, nil
}

// Client is what reaches the bucket, and its name there.
func (b *Bucket) Client() (c *minio.Client, name string) { return b.client, b.name }

// URL is <endpoint>/<bucket>.
func (b *Bucket) URL() string { return b.url }

// Check asks whether the bucket is there and the credentials open it.
func (b *Bucket) Check(ctx context.Context) error {
	ok, err := b.client.BucketExists(ctx, b.name)
	if err == nil && !ok {
		err = fmt.Errorf("there is no bucket %s: make it first", b.url)
	}
	return err
}

// prefix is what the keys of a drive begin with. The slash is part of it: no id
// is the beginning of another one's keys.
func prefix(id string) string { return id + "/" }

// Purge removes all files of a drive. One that has none is no error.
func (b *Bucket) Purge(ctx context.Context, id string) error {
	return b.removeBelow(ctx, prefix(id))
}

// put writes an object of size bytes of r.
func (b *Bucket) put(ctx context.Context, key string, r io.Reader, size int64) error {
	_, err := b.client.PutObject(ctx, b.name, key, r, size, minio.PutObjectOptions{
		ContentType: "application/octet-stream",
		// The client would send a signature of no chunks without saying how long
		// that is, which servers refuse.
		DisableContentSha256: size == 0,
	})
	return err
}

// removeBelow removes every object whose key begins with a prefix.
func (b *Bucket) removeBelow(ctx context.Context, prefix string) error {
	var listing error
	found := func(yield func(minio.ObjectInfo) bool) {
		for o := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
			if o.Err != nil {
				listing = o.Err
				return
			}
			if !yield(o) {
				return
			}
		}
	}
	results, err := b.client.RemoveObjectsWithIter(ctx, b.name, found, minio.RemoveObjectsOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for r := range results {
		if r.Err != nil && len(errs) < errorsMax {
			errs = append(errs, r.Err)
		}
	}
	return errors.Join(append(errs, listing)...)
}
