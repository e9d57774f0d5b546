use mote_function::{serve, Answer, Event};

fn main() {
    serve(|event: Event| greeting(event.query()));
}

fn greeting(query: &str) -> Answer {
    let name = query.strip_prefix("name=").unwrap_or("world");
    Answer::text(format!("Hello, {name}!\n"))
}
