// Package openapi has the parts of an OpenAPI 3.1 document, and makes schemas of
// Go types. It knows neither our routes nor our resources: their owner says
// what a document is about.
package openapi

// Version is that of the specification which documents keep to.
const Version = "3.1.0"

// Document is the root of a document.
type Document struct {
	OpenAPI    string          `json:"openapi"`
	Info       Info            `json:"info"`
	Servers    []Server        `json:"servers"`
	Tags       []Tag           `json:"tags"`
	Paths      map[string]Path `json:"paths"`
	Components Components      `json:"components"`
}

// Info says what a document is about.
type Info struct {
	Title       string `json:"title"`
	Version     string `json:"version"`
	Description string `json:"description"`
}

// Server is where paths begin.
type Server struct {
	URL       string              `json:"url"`
	Variables map[string]Variable `json:"variables,omitempty"`
}

// Variable is a part of the address of a server.
type Variable struct {
	Default     string `json:"default"`
	Description string `json:"description,omitempty"`
}

// Tag is a group of operations.
type Tag struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// Path has the operations of one path by their methods, in lower case.
type Path map[string]*Operation

// Operation is one method of one path.
type Operation struct {
	ID          string                `json:"operationId"`
	Tags        []string              `json:"tags"`
	Summary     string                `json:"summary,omitempty"`
	Description string                `json:"description,omitempty"`
	Security    []map[string][]string `json:"security"` // empty: everybody
	Parameters  []Parameter           `json:"parameters,omitempty"`
	Body        *Body                 `json:"requestBody,omitempty"`
	Responses   map[string]Response   `json:"responses"` // by their statuses
}

// Parameter is a value in a path, a query or a header; or refers to one.
type Parameter struct {
	Ref         string  `json:"$ref,omitempty"`
	Name        string  `json:"name,omitempty"`
	In          string  `json:"in,omitempty"`
	Description string  `json:"description,omitempty"`
	Required    bool    `json:"required,omitempty"`
	Schema      *Schema `json:"schema,omitempty"`
	Example     any     `json:"example,omitempty"`
}

// Body is that of a request.
type Body struct {
	Required bool             `json:"required,omitempty"`
	Content  map[string]Media `json:"content"`
}

// Media is a body in one of its forms.
type Media struct {
	Schema  *Schema `json:"schema"`
	Example any     `json:"example,omitempty"`
}

// Response is what comes of a request; or refers to one.
type Response struct {
	Ref         string            `json:"$ref,omitempty"`
	Description string            `json:"description,omitempty"`
	Headers     map[string]Header `json:"headers,omitempty"`
	Content     map[string]Media  `json:"content,omitempty"`
}

// Header is one of a response.
type Header struct {
	Description string  `json:"description,omitempty"`
	Schema      *Schema `json:"schema"`
}

// Components are what is referred to.
type Components struct {
	Schemas         map[string]*Schema   `json:"schemas"`
	Parameters      map[string]Parameter `json:"parameters"`
	Responses       map[string]Response  `json:"responses"`
	SecuritySchemes map[string]Scheme    `json:"securitySchemes"`
}

// Scheme is a way to say who calls.
type Scheme struct {
	Type        string `json:"type"`
	Scheme      string `json:"scheme,omitempty"`
	In          string `json:"in,omitempty"`
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`

	Flows map[string]Flow `json:"flows,omitempty"` // of oauth2, by their names
}

// Flow is a way to a token of oauth2.
type Flow struct {
	AuthorizationURL string            `json:"authorizationUrl,omitempty"`
	TokenURL         string            `json:"tokenUrl"`
	RefreshURL       string            `json:"refreshUrl,omitempty"`
	Scopes           map[string]string `json:"scopes"` // what each lets do
}
