package httpx

// RequestIDHeader is what every request of a sandbox gets that the proxy sends on.
const RequestIDHeader = "X-Blaxel-Request-Id"
