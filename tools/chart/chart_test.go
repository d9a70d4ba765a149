// Package chart_test looks at the Helm chart as Helm and Kubernetes do. It is a module of
// its own, since Helm has many dependencies.
package chart_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const dir = "../../packaging/helm/doze"

// TestLint: helm lint has nothing to say but that there is no icon.
func TestLint(t *testing.T) {
	t.Parallel()
	for _, m := range lint.All(dir, nil, "test", true).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render returns the manifests of the chart with some values, by kind and name.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c := load(t)
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "d", Namespace: "test", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	objects := map[string]string{}
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") {
			continue
		}
		for doc := range strings.SplitSeq(text, "\n---\n") {
			var head struct {
				metav1.TypeMeta   `json:",inline"`
				metav1.ObjectMeta `json:"metadata"`
			}
			if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, doc)
			}
			if head.Kind != "" {
				objects[head.Kind+"/"+head.Name] = doc
			}
		}
	}
	return objects, nil
}

// kinds are what the chart makes, as Kubernetes reads it.
var kinds = map[string]func() any{
	"ConfigMap": func() any { return new(corev1.ConfigMap) }, "PersistentVolumeClaim": func() any { return new(corev1.PersistentVolumeClaim) },
	"Service": func() any { return new(corev1.Service) }, "Deployment": func() any { return new(appsv1.Deployment) }, "DaemonSet": func() any { return new(appsv1.DaemonSet) },
}

// TestRender: with each of these values, Kubernetes knows every field, and dozed accepts
// every argument.
func TestRender(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]any{
		"defaults": {},
		"all": {
			"database": map[string]any{"secret": "db"}, "settings": map[string]any{"pauseAfter": "30s"},
			"bucket":  map[string]any{"url": "https://s3.example.com/checkpoints", "region": "eu-west-1", "secret": "bucket"},
			"node":    map[string]any{"joinSecret": "join"},
			"control": map[string]any{"storageClass": "fast", "resources": map[string]any{"limits": map[string]any{"memory": "1Gi"}}},
			"image":   map[string]any{"pullSecrets": []any{"registry"}},
			"edge":    map[string]any{"tlsSecret": "tls", "publicURL": "https://doze.example.com", "replicas": 3, "service": map[string]any{"type": "LoadBalancer", "port": 443, "previewPort": 444}},
		},
		"a domain": {
			"settings": map[string]any{"domain": "sandboxes.example.com"},
			"edge":     map[string]any{"tlsSecret": "tls", "publicURL": "https://doze.example.com"},
		},
	} {
		objects, err := render(t, values)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := []string{"ConfigMap/d-settings", "DaemonSet/d-node", "Deployment/d-control", "Deployment/d-edge", "PersistentVolumeClaim/d-control", "Service/d-control", "Service/d-edge"}
		if got := slices.Sorted(maps.Keys(objects)); !slices.Equal(got, want) {
			t.Errorf("%s: it makes %q, want %q", name, got, want)
		}
		for id, doc := range objects {
			kind, _, _ := strings.Cut(id, "/")
			object := kinds[kind]()
			if err := yaml.UnmarshalStrict([]byte(doc), object); err != nil {
				t.Errorf("%s: %s: %v\n%s", name, id, err, doc)
			}
			var pod *corev1.PodTemplateSpec
			switch o := object.(type) {
			case *appsv1.Deployment:
				pod = &o.Spec.Template
			case *appsv1.DaemonSet:
				pod = &o.Spec.Template
			}
			if pod != nil {
				accepted(t, id, objects["ConfigMap/d-settings"], pod)
			}
		}
	}
}

// accepted has dozed check the settings and the arguments of a pod, and looks for each mount's volume.
func accepted(t *testing.T, id, settings string, pod *corev1.PodTemplateSpec) {
	t.Helper()
	var of corev1.ConfigMap
	if err := yaml.Unmarshal([]byte(settings), &of); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(of.Data["config.json"]), 0o600); err != nil {
		t.Fatal(err)
	}
	var volumes []string
	for _, v := range pod.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if !slices.Contains(volumes, m.Name) {
				t.Errorf("%s: there is no volume %s", id, m.Name)
			}
		}
		args := []string{"config", "check", "--config=" + config}
		for _, a := range c.Args[1:] {
			if !strings.HasPrefix(a, "--config=") {
				args = append(args, strings.ReplaceAll(a, "$(HOST_IP)", "192.0.2.1"))
			}
		}
		dozed := filepath.Join("..", "..", "bin", "dozed")
		if _, err := os.Stat(dozed); err != nil {
			t.Skip("SKIPPED: there is no bin/dozed: run make build")
		}
		if out, err := exec.CommandContext(t.Context(), dozed, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: dozed refuses %q: %s", id, args, out)
		}
	}
}

// TestFleet: control and nodes have the bucket, and its keys in a file; edges have neither. A
// node that joins has a token, and nobody else's certificate.
func TestFleet(t *testing.T) {
	t.Parallel()
	objects, err := render(t, map[string]any{
		"bucket": map[string]any{"url": "https://s3.example.com/checkpoints", "secret": "bucket"}, "node": map[string]any{"joinSecret": "join"},
	})
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]corev1.PodSpec{}
	for _, role := range []string{"DaemonSet/d-node", "Deployment/d-control", "Deployment/d-edge"} {
		var object struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		if err := yaml.Unmarshal([]byte(objects[role]), &object); err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(role, "-")
		pods[name] = object.Spec.Template.Spec
	}
	for role, want := range map[string]struct {
		secrets []string
		remote  bool
		token   string // the secret of the token
	}{
		"control": {[]string{"doze-control", "bucket"}, true, ""},
		"node":    {[]string{"bucket"}, true, "join"},
		"edge":    {[]string{"doze-edge"}, false, ""},
	} {
		pod := pods[role]
		var secrets []string
		for _, v := range pod.Volumes {
			if v.Secret != nil {
				secrets = append(secrets, v.Secret.SecretName)
			}
		}
		if !slices.Equal(secrets, want.secrets) {
			t.Errorf("%s: the secrets %q, want %q", role, secrets, want.secrets)
		}
		c := pod.Containers[0]
		for _, a := range []string{"--remote=https://s3.example.com/checkpoints", "--remote-credentials=/etc/doze-bucket/credentials"} {
			if slices.Contains(c.Args, a) != want.remote {
				t.Errorf("%s: the arguments %q", role, c.Args)
			}
		}
		token := ""
		for _, e := range c.Env {
			if e.Name == "DOZED_JOIN" {
				token = e.ValueFrom.SecretKeyRef.Name
			}
		}
		if role != "node" && !slices.Equal(callers(c.Args), callers(pods["edge"].Containers[0].Args)) {
			t.Errorf("%s believes that callers come in at %q", role, callers(c.Args))
		}
		if token != want.token || slices.Contains(c.Args, "--fleet-keys=/etc/doze-fleet") == (want.token != "") {
			t.Errorf("%s: a token in %q, and the arguments %q", role, token, c.Args)
		}
	}
}

// callers are the arguments that say how callers come in. Control makes addresses of them.
func callers(args []string) (all []string) {
	for _, a := range args {
		if name, _, _ := strings.Cut(a, "="); slices.Contains([]string{"--listen", "--public-url", "--preview-listen", "--preview-url", "--tls-cert", "--tls-key"}, name) {
			all = append(all, a)
		}
	}
	return all
}

// TestPreviews: previews have the origin of a port of their own, for control, edges and the service.
// With a domain, they have hosts of their own.
func TestPreviews(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		public, domain string
		want           []string
		ports          int
	}{
		"a port":       {"https://doze.example.com", "", []string{"--listen=:7080", "--public-url=https://doze.example.com", "--preview-listen=:7081", "--preview-url=https://doze.example.com:444"}, 2},
		"another port": {"http://doze.example.com:8080", "", []string{"--listen=:7080", "--public-url=http://doze.example.com:8080", "--preview-listen=:7081", "--preview-url=http://doze.example.com:444"}, 2},
		"IPv6":         {"http://[2001:db8::1]:8080", "", []string{"--listen=:7080", "--public-url=http://[2001:db8::1]:8080", "--preview-listen=:7081", "--preview-url=http://[2001:db8::1]:444"}, 2},
		"a domain":     {"https://doze.example.com", "example.com", []string{"--listen=:7080", "--public-url=https://doze.example.com"}, 1},
	} {
		objects, err := render(t, map[string]any{
			"settings": map[string]any{"domain": tt.domain},
			"edge":     map[string]any{"publicURL": tt.public, "service": map[string]any{"previewPort": 444}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var edge appsv1.Deployment
		var service corev1.Service
		if err := errors.Join(yaml.Unmarshal([]byte(objects["Deployment/d-edge"]), &edge), yaml.Unmarshal([]byte(objects["Service/d-edge"]), &service)); err != nil {
			t.Fatal(err)
		}
		if got := callers(edge.Spec.Template.Spec.Containers[0].Args); !slices.Equal(got, tt.want) || len(service.Spec.Ports) != tt.ports {
			t.Errorf("%s: the arguments %q, and %d ports", name, got, len(service.Spec.Ports))
		}
	}
}

// TestSchema: values that mean nothing are refused before anything is made of them.
func TestSchema(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]any{
		"an unknown value":      {"edeg": map[string]any{}},
		"no replica":            {"edge": map[string]any{"replicas": 0}},
		"a port too many":       {"edge": map[string]any{"service": map[string]any{"port": 70000}}},
		"a relative directory":  {"node": map[string]any{"data": "doze"}},
		"a setting of the pods": {"settings": map[string]any{"data": "/x"}},
		"a token in settings":   {"settings": map[string]any{"join": "x"}},
		"a bucket without keys": {"bucket": map[string]any{"url": "https://s3.example.com/checkpoints"}},
		"keys without a bucket": {"bucket": map[string]any{"secret": "bucket"}},
		"a directory in it":     {"bucket": map[string]any{"url": "https://s3.example.com/checkpoints/a", "secret": "bucket"}},
		"a password in it":      {"bucket": map[string]any{"url": "https://a:b@s3.example.com/checkpoints", "secret": "bucket"}},
		"a file of no pod":      {"settings": map[string]any{"drivesCredentials": "/etc/doze.drives"}},
		"no name of a bucket":   {"bucket": map[string]any{"url": "https://s3.example.com/", "secret": "bucket"}},
		"an odd size":           {"control": map[string]any{"storage": "10"}},
	} {
		if objects, err := render(t, values); err == nil {
			t.Errorf("%s makes %q", name, slices.Sorted(maps.Keys(objects)))
		}
	}
}
