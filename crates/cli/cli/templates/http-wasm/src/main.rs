use wstd::http::{Body, Error, Request, Response};

#[wstd::http_server]
async fn main(request: Request<Body>) -> Result<Response<Body>, Error> {
    let query = request.uri().query().unwrap_or_default();
    let response = Response::builder().header("content-type", "text/plain; charset=utf-8");
    Ok(response.body(greeting(query).into())?)
}

fn greeting(query: &str) -> String {
    let name = query.strip_prefix("name=").unwrap_or("world");
    format!("Hello, {name}!\n")
}
