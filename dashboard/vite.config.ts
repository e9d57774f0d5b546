import { defineConfig } from "vite";

// `npm run dev` sends /v1 to the node at this address. Make it listen there: mote up --admin :6684
const node = process.env.MOTE_ADMIN ?? "http://127.0.0.1:6684";

export default defineConfig({
  base: "/dashboard/",
  build: {
    target: ["chrome123", "firefox128", "safari17.5"],
    // The policy of the node forbids `data:` in scripts and styles, and one file less is no gain.
    assetsInlineLimit: 0,
    // The polyfill would be an inline script.
    modulePreload: { polyfill: false },
    sourcemap: false,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 600,
  },
  server: { proxy: { "/v1": { target: node, changeOrigin: false }, "/metrics": { target: node } } },
});
