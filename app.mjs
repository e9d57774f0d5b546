export function handle() { return "hello"; }
