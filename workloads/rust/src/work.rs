//! The workloads. What a loop computes goes through an optimisation barrier: nothing is left out.

use std::fmt::Write as _;
use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::time::Instant;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::aes::Tables;
use crate::disk::{Folder, file_system, random_bytes};
use crate::matrix::Square;
use crate::python_random::Random;
use crate::{Failure, Fields, Params, number, require, since};

pub(crate) const NAMES: [&str; 10] = [
    "sieve",
    "float-operation",
    "linpack",
    "matmul",
    "pyaes",
    "chameleon",
    "gzip-compression",
    "random-disk-io",
    "sequential-disk-io",
    "json-dumps-loads",
];
const MEBIBYTE: usize = 1 << 20;
const KEY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const MESSAGE_SEED: u32 = 20;

pub(crate) fn run(name: &str, params: &Params) -> Result<Fields, Failure> {
    let value = match name {
        "sieve" => sieve(params),
        "float-operation" => float_operation(params),
        "linpack" => linpack(params),
        "matmul" => matmul(params),
        "pyaes" => aes(params),
        "chameleon" => table(params),
        "gzip-compression" => gzip(params),
        "random-disk-io" => random_disk(params),
        "sequential-disk-io" => sequential_disk(params),
        _ => json_text(params),
    }?;
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(Failure::Check("no fields".to_owned())),
    }
}

fn sieve(params: &Params) -> Result<Value, Failure> {
    let limit = if params.contains_key("limit") { number(params, "limit")? } else { 1000 };
    let mut is_composite = vec![false; limit + 1];
    let mut count = 0;
    for candidate in 2..=limit {
        if is_composite[candidate] {
            continue;
        }
        count += 1;
        for multiple in (candidate * candidate..=limit).step_by(candidate) {
            is_composite[black_box(multiple)] = true;
        }
    }
    Ok(json!({"text": count.to_string(), "check": count}))
}

fn float_operation(params: &Params) -> Result<Value, Failure> {
    let n = number(params, "number")?;
    let start = Instant::now();
    let mut last = 0.0;
    for i in 0..n {
        let x = black_box(i as f64);
        last = black_box(x.sin() + x.cos() + x.sqrt());
    }
    Ok(json!({ "latency": since(start), "number": n, "check": last }))
}

/// Numbers that differ from call to call.
fn fresh() -> Result<Random, Failure> {
    let bytes = random_bytes(4)?;
    Ok(Random::new(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
}

fn linpack(params: &Params) -> Result<Value, Failure> {
    let n = number(params, "number")?;
    let mut random = fresh()?;
    let matrix = Square::from_fn(n, || random.unit() - 0.5);
    let right = matrix.times(&vec![1.0; n]);
    let start = Instant::now();
    let solution = matrix.solve(right);
    let latency = since(start);
    let error = solution.iter().map(|x| (x - 1.0).abs()).fold(0.0, f64::max);
    require(error < 1e-6, || format!("the solution is off by {error}"))?;
    let size = n as f64;
    let operations = 2.0 * size.powi(3) / 3.0 + 2.0 * size.powi(2);
    let mflops = operations * 1e-6 / latency;
    Ok(json!({ "latency": latency, "mflops": mflops, "number": n, "check": "ok" }))
}

fn matmul(params: &Params) -> Result<Value, Failure> {
    let n = number(params, "number")?;
    let mut random = fresh()?;
    let a = Square::from_fn(n, || random.unit());
    let b = Square::from_fn(n, || random.unit());
    let start = Instant::now();
    let product = a.product(&b);
    let latency = since(start);
    let vector: Vec<f64> = (0..n).map(|_| random.unit()).collect();
    let expected = a.times(&b.times(&vector));
    let pairs = product.times(&vector).into_iter().zip(expected);
    let error = pairs.map(|(x, y)| ((x - y) / y).abs()).fold(0.0, f64::max);
    require(error < 1e-8, || format!("the product is off by {error}"))?;
    Ok(json!({ "latency": latency, "number": n, "check": "ok" }))
}

fn aes(params: &Params) -> Result<Value, Failure> {
    let (length, rounds) =
        (number(params, "length_of_message")?, number(params, "num_of_iterations")?);
    let mut random = Random::new(MESSAGE_SEED);
    let plain: Vec<u8> = (0..length).map(|_| b'a' + (random.unit() * 26.0) as u8).collect();
    let tables = Tables::new();
    let start = Instant::now();
    let mut cipher = Vec::new();
    for _ in 0..rounds {
        cipher = tables.counter_mode(black_box(KEY), 1, &plain);
        let back = tables.counter_mode(black_box(KEY), 1, &cipher);
        require(back == plain, || "what was decrypted is not what was encrypted".to_owned())?;
    }
    Ok(json!({
        "latency": since(start),
        "length_of_message": length,
        "num_of_iterations": rounds,
        "check": crc32fast::hash(&cipher),
    }))
}

/// The same text as the Chameleon template's, by a string builder: a different engine.
fn table(params: &Params) -> Result<Value, Failure> {
    let rows = number(params, "num_of_rows")?;
    let columns = number(params, "num_of_cols")?;
    let start = Instant::now();
    let mut page = String::from("<table xmlns=\"http://www.w3.org/1999/xhtml\">\n");
    for _ in 0..rows {
        page.push_str("<tr>\n");
        for column in 0..columns {
            let kind = if column % 2 == 0 { "even" } else { "odd" };
            let cell = format_args!("<td>\n<span class=\"column {kind}\">{column}</span>\n</td>\n");
            let _ = page.write_fmt(cell);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
    let latency = since(start);
    Ok(json!({
        "latency": latency,
        "num_of_rows": rows,
        "num_of_cols": columns,
        "engine": "string builder",
        "check": { "length": page.len(), "crc": crc32fast::hash(page.as_bytes()) },
    }))
}

fn gzip(params: &Params) -> Result<Value, Failure> {
    let size = number(params, "file_size")?;
    let folder = Folder::new()?;
    let start = Instant::now();
    let mut crc = crc32fast::Hasher::new();
    let mut file = File::create(folder.path("plain"))?;
    for _ in 0..size {
        let piece = random_bytes(MEBIBYTE)?;
        crc.update(&piece);
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    let disk_latency = since(start);
    let start = Instant::now();
    let mut encoder = GzEncoder::new(File::create(folder.path("packed"))?, Compression::best());
    std::io::copy(&mut File::open(folder.path("plain"))?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    let compress_latency = since(start);
    let mut found = crc32fast::Hasher::new();
    let mut decoder = GzDecoder::new(File::open(folder.path("packed"))?);
    let mut piece = vec![0; 64 << 10];
    loop {
        match decoder.read(&mut piece)? {
            0 => break,
            count => found.update(&piece[..count]),
        }
    }
    let is_same = found.finalize() == crc.finalize();
    require(is_same, || "what was unpacked is not what was packed".to_owned())?;
    Ok(json!({
        "disk_latency": disk_latency,
        "compress_latency": compress_latency,
        "file_size": size,
        "check": "ok",
    }))
}

fn random_disk(params: &Params) -> Result<Value, Failure> {
    let size = number(params, "file_size")? * MEBIBYTE;
    let block = number(params, "byte_size")?;
    let folder = Folder::new()?;
    let count = size / block;
    let piece = random_bytes(block)?;
    let path = folder.path("file");
    let mut places = Random::new(11);
    let mut place = |below: usize| SeekFrom::Start((places.unit() * below as f64) as u64);
    let start = Instant::now();
    let mut file = File::create(&path)?;
    for _ in 0..count {
        file.seek(place(size))?;
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    let write = since(start);
    let have = file.metadata()?.len() as usize;
    let start = Instant::now();
    let mut file = File::open(&path)?;
    let mut read = 0;
    let mut buffer = vec![0; block];
    for _ in 0..count {
        file.seek(place(have.saturating_sub(block).max(1)))?;
        file.read_exact(&mut buffer)?;
        read += black_box(&buffer).len();
    }
    let took = since(start);
    require(read == count * block, || format!("{read} bytes read"))?;
    Ok(disk_fields((write, took), count * block, (size, block), &path, count * block + read))
}

fn sequential_disk(params: &Params) -> Result<Value, Failure> {
    let size = number(params, "file_size")? * MEBIBYTE;
    let block = number(params, "byte_size")?;
    let folder = Folder::new()?;
    let path = folder.path("file");
    let start = Instant::now();
    let data = random_bytes(size)?;
    let mut file = File::create(&path)?;
    file.write_all(&data)?;
    file.sync_all()?;
    let write = since(start);
    let crc = crc32fast::hash(&data);
    drop(data);
    let start = Instant::now();
    let mut file = File::open(&path)?;
    let mut buffer = vec![0; block];
    let mut read = 0;
    let mut found = crc32fast::Hasher::new();
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => {
                found.update(&buffer[..count]);
                read += count;
            }
        }
    }
    let took = since(start);
    let is_same = read == size && found.finalize() == crc;
    require(is_same, || "what was read is not what was written".to_owned())?;
    Ok(disk_fields((write, took), size, (size, block), &path, read))
}

fn disk_fields(
    (write, read): (f64, f64),
    bytes: usize,
    (size, block): (usize, usize),
    path: &std::path::Path,
    check: usize,
) -> Value {
    json!({
        "disk_write_latency": write,
        "disk_write_bandwidth": bytes as f64 / write,
        "disk_read_latency": read,
        "disk_read_bandwidth": bytes as f64 / read,
        "file_size": size / MEBIBYTE,
        "byte_size": block,
        "file_system": file_system(path),
        "check": check,
    })
}

fn json_text(params: &Params) -> Result<Value, Failure> {
    let link = params.get("link").cloned().or_else(|| std::env::var("JSON_LINK").ok());
    let link = link.ok_or_else(|| Failure::Missing("JSON_LINK: not set".to_owned()))?;
    let rest = link.strip_prefix("http://");
    let (authority, path) = rest
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(|| Failure::Missing("link: a URL with http".to_owned()))?;
    let start = Instant::now();
    let mut server = TcpStream::connect(authority)?;
    write!(server, "GET /{path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let network = since(start);
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    let start = Instant::now();
    let bad = |error: serde_json::Error| Failure::Check(error.to_string());
    let records: Value = serde_json::from_slice(&answer[head..]).map_err(bad)?;
    let mut dumped = Vec::new();
    let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut writer = serde_json::Serializer::with_formatter(&mut dumped, indent);
    serde::Serialize::serialize(&records, &mut writer).map_err(bad)?;
    let latency = since(start);
    let count = records.as_array().map_or(0, Vec::len);
    let check = json!({ "records": count, "length": dumped.len() });
    Ok(json!({ "latency": latency, "network": network, "check": check }))
}
