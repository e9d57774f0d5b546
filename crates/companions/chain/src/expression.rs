//! Runtime expressions. They are written in jq, as the language requires, and evaluated by `jaq`.
//!
//! An expression sees its input as `.` and the variables of its scope. It may not read the time or
//! the environment, because a run that continues after a crash evaluates its expressions again, and
//! they must give the same results.

use std::rc::Rc;

use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Filter, Vars, data, unwrap_valr};
pub use jaq_json::Val;

use crate::yaml::{Kind, Mistake, Node};

/// The variables that every expression sees, in the order in which they are bound.
pub const COMMON: [&str; 6] = ["$context", "$input", "$output", "$task", "$workflow", "$runtime"];
/// jq functions that could give another result when a run continues.
const FORBIDDEN: [&str; 2] = ["now", "env"];

/// The deepest nesting of lists and objects in data.
const DEPTH_MAX: usize = 200;
const DIGITS_MAX: usize = 400;

type Data = data::JustLut<Val>;

#[derive(Clone)]
pub struct Expression {
    filter: Rc<Filter<Data>>,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expression")
    }
}

impl Expression {
    /// Compiles `code`. It may use the variables in [`COMMON`] and those in `names` (without `$`).
    pub fn compile(code: &str, names: &[String], line: usize) -> Result<Self, Mistake> {
        let wrong = |text: String| Mistake::new(line, format!("the expression {code:?}: {text}"));
        let arena = Arena::default();
        let defs = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
        let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
        let funs = funs.filter(|(name, ..)| !FORBIDDEN.contains(name));
        let loader = Loader::new(defs.filter(|def| !FORBIDDEN.contains(&def.name)));
        let modules = loader
            .load(&arena, File { code, path: () })
            .map_err(|errors| wrong(load_errors(&errors)))?;
        let own: Vec<String> = names.iter().map(|name| format!("${name}")).collect();
        let variables = COMMON.iter().copied().chain(own.iter().map(String::as_str));
        let filter = Compiler::default()
            .with_funs(funs)
            .with_global_vars(variables)
            .compile(modules)
            .map_err(|errors| {
                let first = errors.iter().flat_map(|(_, errors)| errors).next();
                wrong(first.map_or_else(String::new, |(name, kind)| {
                    if FORBIDDEN.contains(name) {
                        return format!("{name} would have another result when a run continues");
                    }
                    format!("there is no {} {name}", kind.as_str())
                }))
            })?;
        Ok(Self { filter: Rc::new(filter) })
    }

    /// Evaluates the expression. Returns its first result, or null if it has none.
    pub fn evaluate(&self, input: Val, variables: Vec<Val>) -> Result<Val, String> {
        let _clock = crate::watchdog::begin();
        let ctx = Ctx::<Data>::new(&self.filter.lut, Vars::new(variables));
        match self.filter.id.run((ctx, input)).map(unwrap_valr).next() {
            None => Ok(Val::Null),
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(error.to_string()),
        }
    }
}

fn load_errors<P>(errors: &jaq_core::load::Errors<&str, P>) -> String {
    use jaq_core::load::Error;
    let texts = errors.iter().map(|(_, error)| match error {
        Error::Io(_) => "expressions cannot load modules".to_owned(),
        Error::Lex(errors) => errors
            .first()
            .map(|(expected, at)| format!("expected {} at {:?}", expected.as_str(), start(at)))
            .unwrap_or_default(),
        Error::Parse(errors) => errors
            .first()
            .map(|(expected, at)| format!("expected {} at {:?}", expected.as_str(), start(at)))
            .unwrap_or_default(),
    });
    texts.collect::<Vec<_>>().join("; ")
}

fn start(text: &str) -> String {
    text.chars().take(20).collect()
}

/// A value in the file. Texts of the form `${ … }` in it are expressions.
#[derive(Debug, Clone)]
pub enum Template {
    /// A value without expressions.
    Constant(Val),
    Expression(Expression),
    List(Vec<Template>),
    Map(Vec<(String, Template)>),
}

impl Template {
    /// Reads a template. A text without the form `${ … }` is a constant.
    pub fn read(node: &Node, names: &[String]) -> Result<Self, Mistake> {
        let template = match &node.kind {
            Kind::Text(text) => match inside(text) {
                Some(code) => Template::Expression(Expression::compile(code, names, node.line)?),
                None if text.contains("${") => {
                    return Err(Mistake::new(
                        node.line,
                        "an expression is a whole text; write ${ \"Hello \\(.name)\" } instead of \
                         \"Hello ${ .name }\"",
                    ));
                }
                None => Template::Constant(Val::from(text.clone())),
            },
            Kind::List(items) => Template::List(
                items.iter().map(|item| Self::read(item, names)).collect::<Result<_, _>>()?,
            ),
            Kind::Map(entries) => Template::Map(
                entries
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), Self::read(value, names)?)))
                    .collect::<Result<_, Mistake>>()?,
            ),
            _ => Template::Constant(from_json(&node.json())),
        };
        Ok(template)
    }

    /// Reads a template in a place where a text is always an expression, with or without `${ }`
    /// (`input.from`, `output.as`, `export.as`).
    pub fn read_expression(node: &Node, names: &[String]) -> Result<Self, Mistake> {
        match &node.kind {
            Kind::Text(_) => condition(node, names).map(Template::Expression),
            _ => Self::read(node, names),
        }
    }

    pub fn evaluate(&self, input: &Val, variables: &[Val]) -> Result<Val, String> {
        Ok(match self {
            Template::Constant(value) => value.clone(),
            Template::Expression(expression) => {
                expression.evaluate(input.clone(), variables.to_vec())?
            }
            Template::List(items) => items
                .iter()
                .map(|item| item.evaluate(input, variables))
                .collect::<Result<_, _>>()?,
            Template::Map(entries) => {
                let mut map = jaq_json::Map::default();
                for (key, value) in entries {
                    map.insert(Val::from(key.clone()), value.evaluate(input, variables)?);
                }
                Val::obj(map)
            }
        })
    }
}

/// Reads an expression where a text is always an expression (`if`, `when`, `in`, `while`).
pub fn condition(node: &Node, names: &[String]) -> Result<Expression, Mistake> {
    match &node.kind {
        Kind::Text(text) => {
            Expression::compile(inside(text).unwrap_or(text).trim(), names, node.line)
        }
        Kind::Bool(value) => Expression::compile(&value.to_string(), names, node.line),
        _ => Err(Mistake::new(node.line, format!("expected an expression, found {}", node.what()))),
    }
}

/// The code inside a text of the form `${ … }`.
pub fn inside(text: &str) -> Option<&str> {
    text.trim().strip_prefix("${")?.strip_suffix('}')
}

pub fn from_json(value: &serde_json::Value) -> Val {
    jaq_json::read::parse_single(value.to_string().as_bytes()).unwrap_or_default()
}

/// Reads JSON, unless it is nested too deeply or contains numbers with too many digits.
pub fn parse(json: &[u8]) -> Option<Val> {
    if is_hostile(json) {
        return None;
    }
    jaq_json::read::parse_single(json).ok()
}

/// Whether lists and objects are nested deeper than [`DEPTH_MAX`], or a number has more digits than
/// [`DIGITS_MAX`]. The parser and much of jq use a part of the stack for each level, and the time
/// to read a number grows with the square of its number of digits.
fn is_hostile(json: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut in_text = false;
    let mut escaped = false;
    let mut digits = 0_usize;
    for byte in json {
        digits = if !in_text && byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > DIGITS_MAX {
            return true;
        }
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}

/// Converts a value to JSON. Fails if the value has no form in JSON.
pub fn to_json(value: &Val) -> Result<serde_json::Value, String> {
    let text = value.to_string();
    serde_json::from_str(&text)
        .map_err(|_| format!("{} has no form in JSON", text.chars().take(80).collect::<String>()))
}

/// Whether a condition holds. As in jq, every value except false and null counts as true.
pub fn is_true(value: &Val) -> bool {
    !matches!(value, Val::Null | Val::Bool(false))
}

/// The member of an object with this key.
pub fn get<'a>(value: &'a Val, key: &str) -> Option<&'a Val> {
    match value {
        Val::Obj(map) => map.get(&Val::from(key.to_owned())),
        _ => None,
    }
}

pub fn text_of(value: &Val) -> Option<String> {
    match value {
        Val::TStr(bytes) => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    }
}

/// The value as a whole number.
pub fn int_of(value: &Val) -> Option<i64> {
    match value {
        Val::Num(number) => number.as_isize().map(|number| number as i64),
        _ => None,
    }
}

pub fn object<const N: usize>(members: [(&str, Val); N]) -> Val {
    let map = members.into_iter().map(|(key, value)| (Val::from(key.to_owned()), value));
    Val::obj(map.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(code: &str, input: &str) -> Result<String, String> {
        let names = ["pet".to_owned()];
        let expression = Expression::compile(code, &names, 3).map_err(|error| error.to_string())?;
        let mut variables = vec![Val::Null; COMMON.len()];
        variables.push(Val::from("Milou".to_owned()));
        let value = expression.evaluate(parse(input.as_bytes()).unwrap(), variables)?;
        Ok(value.to_string())
    }

    #[test]
    fn expressions_are_jq() {
        assert_eq!(evaluate(".a + 1", r#"{"a": 2}"#).unwrap(), "3");
        assert_eq!(evaluate("[.[] | select(. > 1)] | length", "[1,2,3]").unwrap(), "2");
        assert_eq!(evaluate("\"Hello \\($pet)\"", "null").unwrap(), "\"Hello Milou\"");
        assert_eq!(evaluate("empty", "null").unwrap(), "null");
        assert_eq!(
            evaluate("{ a: .b, c: [1] }", r#"{"b": null}"#).unwrap(),
            r#"{"a":null,"c":[1]}"#
        );
    }

    #[test]
    fn hostile_data_are_refused() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(DEPTH_MAX).as_bytes()).is_some());
        assert!(parse(nested(DEPTH_MAX + 1).as_bytes()).is_none());
        assert!(parse(nested(2_000_000).as_bytes()).is_none());
        assert!(parse("9".repeat(DIGITS_MAX).as_bytes()).is_some());
        assert!(parse(format!("[{}]", "9".repeat(DIGITS_MAX + 1)).as_bytes()).is_none());
        assert!(parse(format!("\"{}\"", "9".repeat(1_000)).as_bytes()).is_some());
        let text = format!("\"{}\\\"{}\"", "[".repeat(300), "{".repeat(300));
        assert!(parse(text.as_bytes()).is_some(), "brackets in a text are no nesting");
    }

    #[test]
    fn mistakes_say_what_and_where() {
        for (code, expected) in [
            ("$pets", "line 3: the expression \"$pets\": there is no variable $pets"),
            ("nonsense", "there is no filter nonsense"),
            ("now", "now would have another result when a run continues"),
            ("env", "env would have another result when a run continues"),
            (".a +", "expected term"),
            ("(.a", "expected"),
        ] {
            let error = evaluate(code, "null").unwrap_err();
            assert!(error.contains(expected), "{code}: {error}");
        }
        assert!(evaluate(".a", "1").unwrap_err().contains("cannot index"));
    }
}
