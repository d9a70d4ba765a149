import { defineConfig } from "astro/config";

// The host of a preview is not known here, and the platform decides who reaches it.
export default defineConfig({ server: { host: true, port: 4321, allowedHosts: true } });
