package doze_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// FuzzPullSecret wants credentials of what is accepted to be whole.
func FuzzPullSecret(f *testing.F) {
	f.Add(`{"auths":{"https://a.b/v1/":{"auth":"YTpi"}}}`, "a.b/c:1")
	f.Fuzz(func(t *testing.T, text, ref string) {
		all, err := doze.ParsePullSecret(text)
		if err != nil {
			return
		}
		if login, ok := doze.LoginFor(all, ref); ok != (login.Username != "" && login.Password != "") {
			t.Errorf("%q has %+v", ref, login)
		}
	})
}

func TestPullSecret(t *testing.T) {
	t.Parallel()
	all, err := doze.ParsePullSecret(`{"auths":{
		"https://index.docker.io/v1/":{"auth":"aHViOnB3OndpdGg="},
		"registry.example.com":{"username":"all","password":"1"},
		"registry.example.com/team":{"username":"team","password":"2"},
		"127.0.0.1:5000":{"username":"here","password":"3"}},"credsStore":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	for ref, user := range map[string]string{
		"docker.io/library/python:3.12": "hub", "index.docker.io/a/b": "hub",
		"registry.example.com/a:1": "all", "registry.example.com/team/app@sha256:0": "team", "registry.example.com/teams/app": "all",
		"127.0.0.1:5000/a": "here", "127.0.0.1:5001/a": "", "python:3.12": "", "team/app:1": "", "other.example.com/a": "", "": "",
	} {
		if login, ok := doze.LoginFor(all, ref); login.Username != user || ok != (user != "") {
			t.Errorf("%q: %+v, want %q", ref, login, user)
		}
	}
	if all["index.docker.io"].Password != "pw:with" {
		t.Errorf("%+v", all["index.docker.io"])
	}
	for text, says := range map[string]string{
		"": "must be like", "[]": "must be like", `{"auths":{}}`: "must be like", `{"auths":{"a.b":{"auth":"?"}}}`: "base64",
		`{"auths":{"a.b":{"auth":"YQ=="}}}`: "base64", `{"auths":{"a.b":{"username":"a"}}}`: "no username and password",
	} {
		if _, err := doze.ParsePullSecret(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	secret := doze.Secret{Metadata: doze.Metadata{Name: "a"}, Data: map[string]string{doze.PullSecretKey: "{}"}}
	var p doze.Problems
	secret.Check(&p)
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), doze.PullSecretKey) {
		t.Error(err)
	}
}
