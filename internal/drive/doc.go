// Package drive keeps drives in a bucket of an S3 service: each is a prefix of
// its own, and what is behind it in a key is the path of a file.
package drive
