//! Reads and checks the file of a chain.
//!
//! The language is the DSL 1.0 of the CNCF Serverless Workflow specification
//! (serverlessworkflow/specification). The reader refuses everything that a node cannot do
//! (listening for events, containers, scripts, HTTP to arbitrary addresses), so a chain that can be
//! deployed can also run. Each mistake names the line and says what to write instead.

use std::time::Duration;

use crate::document::{
    Backoff, Call, Catch, Chain, Delay, For, Http, Retry, Schema, Shape, Task, Then, Work,
};
use crate::expression::{self, Expression, Template, condition};
use crate::fields::{Fields, expected, text_of};
use crate::yaml::{Kind, Mistake, Mistakes, Node};

/// The most tasks in one file.
const TASKS_MAX: usize = 1_000;
/// The most iterations of a `for` that run at once.
const PARALLEL_MAX: i64 = 64;
const WAIT_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The most mistakes in tasks that are reported at once.
const MISTAKES_MAX: usize = 20;

/// Reads a file. The error contains the mistakes of all tasks in the order of their lines.
pub fn read(text: &str) -> Result<Chain, Mistakes> {
    let mut reader = Reader { common: Common::default(), tasks: 0, mistakes: Vec::new() };
    let chain = read_with(&mut reader, text);
    let mut mistakes = reader.mistakes;
    match chain {
        Ok(chain) if mistakes.is_empty() => return Ok(chain),
        Ok(_) => {}
        Err(mistake) => mistakes.push(mistake),
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    Err(Mistakes(mistakes))
}

fn read_with(reader: &mut Reader, text: &str) -> Result<Chain, Mistake> {
    let root = crate::yaml::read(text)?;
    let mut fields = Fields::of(&root, "the file")?;
    let mut document = Fields::of(fields.required("document")?, "document")?;
    let dsl = document.required("dsl")?;
    let version = text_of(dsl)?;
    if !version.starts_with("1.0.") {
        return Err(Mistake::new(
            dsl.line,
            format!("dsl is {version:?}; this node runs versions 1.0.x of the language"),
        ));
    }
    let name = text_of(document.required("name")?)?.to_owned();
    for unused in ["namespace", "version", "title", "summary", "tags", "metadata"] {
        document.take(unused);
    }
    document.end()?;
    if let Some(node) = fields.take("use") {
        reader.common = Common::read(node)?;
    }
    if let Some(node) = fields.take("evaluate") {
        let mut evaluate = Fields::of(node, "evaluate")?;
        for (key, only) in [("language", "jq"), ("mode", "strict")] {
            if let Some(node) = evaluate.take(key)
                && text_of(node)? != only
            {
                return Err(Mistake::new(node.line, format!("evaluate.{key} can only be {only}")));
            }
        }
        evaluate.end()?;
    }
    // `mote deploy` has already made triggers from this key.
    fields.take("schedule");
    let names = Names::default();
    let chain = Chain {
        name,
        definition: root.json(),
        input: shape(fields.take("input"), "from", &names)?,
        output: shape(fields.take("output"), "as", &names)?,
        timeout: reader.timeout(fields.take("timeout"), &names)?,
        tasks: reader.list(fields.required("do")?, &names)?,
    };
    fields.end()?;
    Ok(chain)
}

/// The variables of a scope, and whether the scope is inside a branch.
#[derive(Debug, Default, Clone)]
struct Names {
    variables: Vec<String>,
    branch: bool,
}

impl Names {
    fn with(&self, more: &[&str]) -> Self {
        let mut names = self.clone();
        names.variables.extend(more.iter().map(|name| (*name).to_owned()));
        names
    }
}

/// The definitions in `use`.
#[derive(Debug, Default, Clone)]
struct Common {
    errors: Vec<(String, Node)>,
    retries: Vec<(String, Node)>,
    timeouts: Vec<(String, Node)>,
    functions: Vec<(String, Node)>,
}

impl Common {
    fn read(node: &Node) -> Result<Self, Mistake> {
        let mut fields = Fields::of(node, "use")?;
        let mut part = |name: &str| -> Result<Vec<(String, Node)>, Mistake> {
            match fields.take(name) {
                None => Ok(Vec::new()),
                Some(node) => match &node.kind {
                    Kind::Map(entries) => Ok(entries.clone()),
                    _ => Err(expected(node, &format!("use.{name}"), "a map")),
                },
            }
        };
        let common = Self {
            errors: part("errors")?,
            retries: part("retries")?,
            timeouts: part("timeouts")?,
            functions: part("functions")?,
        };
        for (other, instead) in [
            ("authentications", "functions authenticate themselves"),
            ("catalogs", "call functions of this node by their names"),
            ("extensions", "write the tasks where they run"),
            ("secrets", "give a secret to the function that needs it"),
        ] {
            if let Some(node) = fields.take(other) {
                return Err(Mistake::new(
                    node.line,
                    format!("a node has no use.{other} for chains; {instead}"),
                ));
            }
        }
        fields.end()?;
        Ok(common)
    }

    /// Returns the value itself if it is written in place. If the value is a text, it is the name
    /// of an entry in `use`, and that entry is returned.
    fn resolve<'a>(
        map: &'a [(String, Node)],
        what: &str,
        node: &'a Node,
    ) -> Result<&'a Node, Mistake> {
        let Kind::Text(name) = &node.kind else { return Ok(node) };
        map.iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
            .ok_or_else(|| Mistake::new(node.line, format!("use.{what} has no {name:?}")))
    }
}

struct Reader {
    common: Common,
    tasks: usize,
    /// The mistakes in tasks that have been found so far.
    mistakes: Vec<Mistake>,
}

impl Reader {
    /// Reads a list of tasks. Each item is a map with one name and one task.
    fn list(&mut self, node: &Node, names: &Names) -> Result<Vec<Task>, Mistake> {
        let Kind::List(items) = &node.kind else {
            return Err(expected(node, "tasks", "a list such as: - NAME: { call: FUNCTION }"));
        };
        if items.is_empty() {
            return Err(Mistake::new(node.line, "the list has no task"));
        }
        let mut entries = Vec::new();
        for item in items {
            match &item.kind {
                Kind::Map(map) if map.len() == 1 => entries.push((&map[0].0, &map[0].1, item.line)),
                Kind::Map(map) if map.len() > 1 => {
                    return Err(Mistake::new(
                        item.line,
                        format!(
                            "an item of a list of tasks is one task; {:?} and {:?} need a dash each, \
                             or are not indented below the name of their task",
                            map[0].0, map[1].0
                        ),
                    ));
                }
                _ => {
                    return Err(expected(
                        item,
                        "a task",
                        "a map such as: NAME: { call: FUNCTION }",
                    ));
                }
            }
        }
        for (at, (name, _, line)) in entries.iter().enumerate() {
            if entries[..at].iter().any(|(other, ..)| other == name) {
                return Err(Mistake::new(*line, format!("a second task of this list is {name:?}")));
            }
            if ["continue", "exit", "end"].contains(&name.as_str()) {
                return Err(Mistake::new(
                    *line,
                    format!("a task cannot be named {name:?}, which `then` means otherwise"),
                ));
            }
        }
        let scope: Vec<&str> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        let mut tasks = Vec::new();
        for (name, node, line) in &entries {
            match self.task(name, node, *line, &scope, names) {
                Ok(task) => tasks.push(task),
                // The other tasks are read as well, so that one deploy reports all mistakes.
                Err(mistake) if self.mistakes.len() < MISTAKES_MAX => self.mistakes.push(mistake),
                Err(_) => {}
            }
        }
        Ok(tasks)
    }

    fn task(
        &mut self,
        name: &str,
        node: &Node,
        line: usize,
        scope: &[&str],
        names: &Names,
    ) -> Result<Task, Mistake> {
        self.tasks += 1;
        if self.tasks > TASKS_MAX {
            return Err(Mistake::new(line, format!("a chain has at most {TASKS_MAX} tasks")));
        }
        let what = format!("task {name:?}");
        let mut fields = Fields::of(node, &what)?;
        let variables = &names.variables;
        let condition_of = |node: Option<&Node>| match node {
            Some(node) => condition(node, variables).map(Some),
            None => Ok(None),
        };
        let condition = condition_of(fields.take("if"))?;
        let input = shape(fields.take("input"), "from", names)?;
        let output = shape(fields.take("output"), "as", names)?;
        let export = shape(fields.take("export"), "as", names)?;
        let timeout = self.timeout(fields.take("timeout"), names)?;
        let then = match fields.take("then") {
            Some(node) => then(node, scope, names)?,
            None => Then::Continue,
        };
        let metadata = fields.take("metadata");
        let parallel = parallel(metadata)?;
        let work = self.work(&what, &mut fields, scope, names, parallel)?;
        if parallel.is_some() && !matches!(work, Work::For(_)) {
            return Err(Mistake::new(line, "only a `for` can have metadata.parallel"));
        }
        fields.end()?;
        let name = name.to_owned();
        Ok(Task { name, line, condition, input, output, export, timeout, then, work })
    }

    fn work(
        &mut self,
        what: &str,
        fields: &mut Fields<'_>,
        scope: &[&str],
        names: &Names,
        parallel: Option<usize>,
    ) -> Result<Work, Mistake> {
        let variables = &names.variables;
        if let Some(node) = fields.take("call") {
            return self.call(node, fields.take("with"), names);
        }
        if let Some(node) = fields.take("for") {
            let mut loops = Fields::of(node, "for")?;
            let mut name_of = |key: &str, default: &str| match loops.take(key) {
                Some(node) => variable(node),
                None => Ok(default.to_owned()),
            };
            let each = name_of("each", "item")?;
            let at = name_of("at", "index")?;
            let list = condition(loops.required("in")?, variables)?;
            loops.end()?;
            let inner = names.with(&[&each, &at]);
            let condition_node = fields.take("while");
            if let (Some(node), Some(_)) = (condition_node, parallel) {
                return Err(Mistake::new(
                    node.line,
                    "iterations that run at the same time cannot have a `while`",
                ));
            }
            let condition = match condition_node {
                Some(node) => Some(condition(node, &inner.variables)?),
                None => None,
            };
            let inner = Names { branch: names.branch || parallel.is_some(), ..inner };
            let tasks = self.list(fields.required("do")?, &inner)?;
            return Ok(Work::For(For { list, condition, tasks, parallel }));
        }
        if let Some(node) = fields.take("try") {
            let tasks = self.list(node, names)?;
            let catch = Box::new(self.catch(fields.required("catch")?, names)?);
            return Ok(Work::Try { tasks, catch });
        }
        if let Some(node) = fields.take("do") {
            return Ok(Work::Do(self.list(node, names)?));
        }
        if let Some(node) = fields.take("fork") {
            let mut fork = Fields::of(node, "fork")?;
            let inner = Names { branch: true, ..names.clone() };
            let branches = self.list(fork.required("branches")?, &inner)?;
            let compete = match fork.take("compete") {
                Some(Node { kind: Kind::Bool(value), .. }) => *value,
                Some(node) => return Err(expected(node, "fork.compete", "true or false")),
                None => false,
            };
            fork.end()?;
            return Ok(Work::Fork { branches, compete });
        }
        if let Some(node) = fields.take("raise") {
            let mut raise = Fields::of(node, "raise")?;
            let error = Common::resolve(&self.common.errors, "errors", raise.required("error")?)?;
            let mut members = Fields::of(error, "raise.error")?;
            members.required("type")?;
            members.required("status")?;
            raise.end()?;
            return Ok(Work::Raise(Template::read(error, variables)?));
        }
        if let Some(node) = fields.take("run") {
            let mut run = Fields::of(node, "run")?;
            if let Some(workflow) = run.take("workflow") {
                let mut workflow = Fields::of(workflow, "run.workflow")?;
                let function = text_of(workflow.required("name")?)?.to_owned();
                workflow.take("namespace");
                workflow.take("version");
                let body = match workflow.take("input") {
                    Some(node) => Some(Template::read(node, variables)?),
                    None => None,
                };
                workflow.end()?;
                run.end()?;
                return Ok(Work::Call(Call { function, http: None, body }));
            }
            return Err(Mistake::new(
                node.line,
                "a chain can only run a workflow; make a function of a container, a script or a \
                 shell command, and call it",
            ));
        }
        if let Some(node) = fields.take("set") {
            return Ok(Work::Set(Template::read(node, variables)?));
        }
        if let Some(node) = fields.take("switch") {
            return self.switch(node, scope, names);
        }
        if let Some(node) = fields.take("wait") {
            return Ok(Work::Wait(delay(node, names)?));
        }
        for (word, instead) in [
            ("emit", "publish a message instead: call: mqtt.publish"),
            ("listen", "give the chain an MQTT trigger, which begins a run for each message"),
        ] {
            if let Some(node) = fields.take(word) {
                return Err(Mistake::new(node.line, format!("a chain cannot {word}; {instead}")));
            }
        }
        Err(Mistake::new(
            fields.line,
            format!(
                "{what} does nothing; it needs one of call, do, for, fork, raise, run, set, switch, \
                 try, wait"
            ),
        ))
    }

    fn switch(&mut self, node: &Node, scope: &[&str], names: &Names) -> Result<Work, Mistake> {
        let Kind::List(items) = &node.kind else {
            return Err(expected(node, "switch", "a list such as: - NAME: { when: …, then: … }"));
        };
        let mut cases: Vec<(Option<Expression>, Then)> = Vec::new();
        for item in items {
            let Kind::Map(map) = &item.kind else {
                return Err(expected(item, "a case", "a map such as: NAME: { when: …, then: … }"));
            };
            let [(name, case)] = &map[..] else {
                return Err(Mistake::new(item.line, "an item of a switch is one case"));
            };
            let mut case = Fields::of(case, &format!("case {name:?}"))?;
            let when = match case.take("when") {
                Some(node) => Some(condition(node, &names.variables)?),
                None => None,
            };
            if when.is_none() && cases.iter().any(|(when, _)| when.is_none()) {
                return Err(Mistake::new(item.line, "only one case can be without `when`"));
            }
            cases.push((when, then(case.required("then")?, scope, names)?));
            case.end()?;
        }
        Ok(Work::Switch(cases))
    }

    fn call(&mut self, node: &Node, with: Option<&Node>, names: &Names) -> Result<Work, Mistake> {
        let function = text_of(node)?;
        let variables = &names.variables;
        match function {
            "http" => return http(with.unwrap_or(node), variables),
            "mqtt.publish" => {
                let with = with.ok_or_else(|| {
                    Mistake::new(node.line, "mqtt.publish needs `with: { topic: …, payload: … }`")
                })?;
                let mut fields = Fields::of(with, "with")?;
                let topic = fields.required("topic")?;
                if let Kind::Text(text) = &topic.kind
                    && expression::inside(text).is_none()
                    && let Err(why) = mote_spec::mqtt::check_topic(text)
                {
                    return Err(Mistake::new(topic.line, format!("topic {text:?}: {why}")));
                }
                for known in ["payload", "qos", "retain", "contentType"] {
                    fields.take(known);
                }
                fields.end()?;
                return Ok(Work::Publish(Template::read(with, variables)?));
            }
            "grpc" | "openapi" | "asyncapi" | "a2a" | "mcp" => {
                return Err(Mistake::new(
                    node.line,
                    format!(
                        "a chain cannot call {function}; write a function that does, and call it"
                    ),
                ));
            }
            _ => {}
        }
        let known = self.common.functions.iter().find(|(name, _)| name == function);
        if let Some((_, task)) = known.cloned() {
            let mut fields = Fields::of(&task, &format!("use.functions.{function}"))?;
            let inner = fields.required("call")?;
            if text_of(inner)? == function {
                return Err(Mistake::new(inner.line, format!("{function:?} calls itself")));
            }
            let own = fields.take("with");
            fields.end()?;
            return self.call(inner, with.or(own), names);
        }
        check_name(function, node.line)?;
        let body = match with {
            Some(node) => Some(Template::read(node, variables)?),
            None => None,
        };
        Ok(Work::Call(Call { function: function.to_owned(), http: None, body }))
    }

    fn catch(&mut self, node: &Node, names: &Names) -> Result<Catch, Mistake> {
        let mut fields = Fields::of(node, "catch")?;
        let filter = match fields.take("errors") {
            Some(node) => {
                let mut errors = Fields::of(node, "catch.errors")?;
                let with = errors.required("with")?;
                errors.end()?;
                let mut members = Fields::of(with, "catch.errors.with")?;
                for known in ["type", "instance", "title", "detail"] {
                    members.take(known);
                }
                match members.take("status") {
                    Some(Node { kind: Kind::Text(text), line }) if !text.contains("${") => {
                        let text = format!("a status is a number without quotes, not {text:?}");
                        return Err(Mistake::new(*line, text));
                    }
                    _ => {}
                }
                members.end()?;
                Some(Template::read(with, &names.variables)?)
            }
            None => None,
        };
        let name = match fields.take("as") {
            Some(node) => variable(node)?,
            None => "error".to_owned(),
        };
        let inner = names.with(&[&name]);
        let mut condition_of = |key: &str| match fields.take(key) {
            Some(node) => condition(node, &inner.variables).map(Some),
            None => Ok(None),
        };
        let when = condition_of("when")?;
        let except_when = condition_of("exceptWhen")?;
        let retry = match fields.take("retry") {
            Some(node) => {
                let node = Common::resolve(&self.common.retries, "retries", node)?.clone();
                Some(self.retry(&node, &inner)?)
            }
            None => None,
        };
        let tasks = match fields.take("do") {
            Some(node) => Some(self.list(node, &inner)?),
            None => None,
        };
        fields.end()?;
        Ok(Catch { filter, when, except_when, retry, tasks })
    }

    fn retry(&mut self, node: &Node, names: &Names) -> Result<Retry, Mistake> {
        let mut fields = Fields::of(node, "retry")?;
        let mut condition_of = |key: &str| match fields.take(key) {
            Some(node) => condition(node, &names.variables).map(Some),
            None => Ok(None),
        };
        let when = condition_of("when")?;
        let except_when = condition_of("exceptWhen")?;
        let pause = match fields.take("delay") {
            Some(node) => Some(delay(node, names)?),
            None => None,
        };
        let mut count = None;
        let mut within = None;
        let mut attempt = None;
        if let Some(node) = fields.take("limit") {
            let mut limit = Fields::of(node, "retry.limit")?;
            if let Some(node) = limit.take("duration") {
                within = Some(delay(node, names)?);
            }
            if let Some(node) = limit.take("attempt") {
                let mut attempts = Fields::of(node, "retry.limit.attempt")?;
                count = match attempts.take("count") {
                    Some(Node { kind: Kind::Int(number @ 0..=1_000), .. }) => Some(*number as u64),
                    Some(node) => {
                        return Err(expected(node, "retry.limit.attempt.count", "0 to 1000"));
                    }
                    None => None,
                };
                if let Some(node) = attempts.take("duration") {
                    attempt = Some(delay(node, names)?);
                }
                attempts.end()?;
            }
            limit.end()?;
        }
        let backoff = match fields.take("backoff") {
            None => Backoff::Constant,
            Some(node) => match &node.kind {
                Kind::Map(map) if map.len() == 1 => match map[0].0.as_str() {
                    "constant" => Backoff::Constant,
                    "linear" => Backoff::Linear,
                    "exponential" => Backoff::Exponential,
                    other => {
                        let text =
                            format!("a backoff is constant, linear or exponential, not {other:?}");
                        return Err(Mistake::new(node.line, text));
                    }
                },
                _ => return Err(expected(node, "retry.backoff", "a map such as: exponential: {}")),
            },
        };
        let jitter = match fields.take("jitter") {
            Some(node) => {
                let mut jitter = Fields::of(node, "retry.jitter")?;
                let from = delay(jitter.required("from")?, names)?;
                let to = delay(jitter.required("to")?, names)?;
                jitter.end()?;
                Some((from, to))
            }
            None => None,
        };
        fields.end()?;
        Ok(Retry { when, except_when, count, within, attempt, delay: pause, backoff, jitter })
    }

    fn timeout(&self, node: Option<&Node>, names: &Names) -> Result<Option<Delay>, Mistake> {
        let Some(node) = node else { return Ok(None) };
        let node = Common::resolve(&self.common.timeouts, "timeouts", node)?;
        let mut fields = Fields::of(node, "timeout")?;
        let after = delay(fields.required("after")?, names)?;
        fields.end()?;
        Ok(Some(after))
    }
}

fn check_name(function: &str, line: usize) -> Result<(), Mistake> {
    let name = function.split('@').next().unwrap_or_default();
    match mote_spec::FunctionName::new(name) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = format!("{function:?} is not the name of a function: {error}");
            Err(Mistake::new(line, text))
        }
    }
}

/// Reads a call of `http://mote.internal/NAME/PATH`. Such a call stays inside the node.
fn http(with: &Node, variables: &[String]) -> Result<Work, Mistake> {
    let mut fields = Fields::of(with, "with")?;
    let method = text_of(fields.required("method")?)?.to_ascii_uppercase();
    let endpoint = fields.required("endpoint")?;
    let uri = match &endpoint.kind {
        Kind::Map(_) => {
            let mut parts = Fields::of(endpoint, "endpoint")?;
            let uri = parts.required("uri")?;
            parts.end()?;
            uri
        }
        _ => endpoint,
    };
    let address = text_of(uri)?;
    let Some(rest) = address.strip_prefix("http://mote.internal/").filter(|rest| !rest.is_empty())
    else {
        return Err(Mistake::new(
            uri.line,
            format!(
                "a chain reaches only functions of its node; {address:?} needs a function that \
                 requests it (http://mote.internal/NAME calls the function NAME)"
            ),
        ));
    };
    let (function, path) = match rest.split_once('/') {
        Some((function, path)) => (function, format!("/{path}")),
        None => (rest, "/".to_owned()),
    };
    check_name(function, uri.line)?;
    let template = |node: Option<&Node>| match node {
        Some(node) => Template::read(node, variables).map(Some),
        None => Ok(None),
    };
    let body = template(fields.take("body"))?;
    let headers = template(fields.take("headers"))?;
    let query = template(fields.take("query"))?;
    let whole = match fields.take("output") {
        None => false,
        Some(node) => match text_of(node)? {
            "content" => false,
            "response" => true,
            other => {
                let text = format!("output is content or response, not {other:?}");
                return Err(Mistake::new(node.line, text));
            }
        },
    };
    fields.take("redirect");
    fields.end()?;
    let http = Http { method, path, headers, query, whole };
    Ok(Work::Call(Call { function: function.to_owned(), http: Some(http), body }))
}

/// Reads `metadata.parallel` of a `for`.
fn parallel(metadata: Option<&Node>) -> Result<Option<usize>, Mistake> {
    let Some(Node { kind: Kind::Map(entries), .. }) = metadata else { return Ok(None) };
    // Metadata may have any keys, but a key that begins like this is more likely a misspelled
    // `parallel`.
    if let Some((key, node)) = entries
        .iter()
        .find(|(key, _)| key != "parallel" && key.to_ascii_lowercase().starts_with("paral"))
    {
        return Err(Mistake::new(node.line, format!("metadata.{key}: did you mean parallel?")));
    }
    match entries.iter().find(|(key, _)| key == "parallel").map(|(_, node)| node) {
        None => Ok(None),
        Some(Node { kind: Kind::Int(number @ 1..=PARALLEL_MAX), .. }) => Ok(Some(*number as usize)),
        Some(node) => {
            Err(expected(node, "metadata.parallel", &format!("a number from 1 to {PARALLEL_MAX}")))
        }
    }
}

fn shape(node: Option<&Node>, key: &str, names: &Names) -> Result<Shape, Mistake> {
    let Some(node) = node else { return Ok(Shape::default()) };
    let mut fields = Fields::of(node, "this value")?;
    let transform = match fields.take(key) {
        Some(node) => Some(Template::read_expression(node, &names.variables)?),
        None => None,
    };
    let schema = match fields.take("schema") {
        Some(node) => {
            let mut schema = Fields::of(node, "schema")?;
            schema.take("format");
            let document = schema.required("document")?;
            schema.end()?;
            let validator = jsonschema::validator_for(&document.json()).map_err(|error| {
                Mistake::new(document.line, format!("this is not a JSON schema: {error}"))
            })?;
            Some(Schema(validator))
        }
        None => None,
    };
    fields.end()?;
    Ok(Shape { schema, transform })
}

fn then(node: &Node, scope: &[&str], names: &Names) -> Result<Then, Mistake> {
    match text_of(node)? {
        "continue" => Ok(Then::Continue),
        "exit" => Ok(Then::Exit),
        "end" if names.branch => Err(Mistake::new(
            node.line,
            "a branch cannot end the run, because others run at the same time; use exit",
        )),
        "end" => Ok(Then::End),
        name => match scope.iter().position(|known| *known == name) {
            Some(at) => Ok(Then::Task(at)),
            None => Err(Mistake::new(
                node.line,
                format!("there is no task {name:?} in this list; it has {}", scope.join(", ")),
            )),
        },
    }
}

fn delay(node: &Node, names: &Names) -> Result<Delay, Mistake> {
    if let Kind::Text(text) = &node.kind
        && let Some(code) = expression::inside(text)
    {
        return Expression::compile(code, &names.variables, node.line).map(Delay::Expression);
    }
    let span = match &node.kind {
        Kind::Text(text) => parse_delay(text).map_err(|text| Mistake::new(node.line, text))?,
        Kind::Map(entries) => {
            let mut span = Duration::ZERO;
            for (unit, value) in entries {
                let Kind::Int(number @ 0..=1_000_000_000) = value.kind else {
                    return Err(expected(value, unit, "a whole number from 0"));
                };
                let number = number as u64;
                span += match unit.as_str() {
                    "days" => Duration::from_secs(number * 86_400),
                    "hours" => Duration::from_secs(number * 3_600),
                    "minutes" => Duration::from_secs(number * 60),
                    "seconds" => Duration::from_secs(number),
                    "milliseconds" => Duration::from_millis(number),
                    other => {
                        let text = format!(
                            "a duration has days, hours, minutes, seconds and milliseconds, not \
                             {other:?}"
                        );
                        return Err(Mistake::new(value.line, text));
                    }
                };
            }
            span
        }
        _ => return Err(expected(node, "a duration", "such as { seconds: 5 } or PT5S")),
    };
    if span > WAIT_MAX {
        return Err(Mistake::new(node.line, "a duration has at most 366 days"));
    }
    Ok(Delay::Fixed(span))
}

fn variable(node: &Node) -> Result<String, Mistake> {
    let name = text_of(node)?;
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let first = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if first && name.bytes().all(good) {
        Ok(name.to_owned())
    } else {
        Err(Mistake::new(node.line, format!("{name:?} cannot be the name of a variable")))
    }
}

/// Reads a duration in ISO 8601, such as PT5S.
pub fn parse_delay(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as PT5S, PT1H30M or P1D");
    let span: jiff::Span = if text.starts_with('P') {
        text.parse().map_err(|_| wrong())?
    } else {
        return Err(wrong());
    };
    // Durations with months or years are refused, because these have no fixed length.
    let days = jiff::SpanRelativeTo::days_are_24_hours();
    let span = span.to_duration(days).map_err(|_| wrong())?;
    Duration::try_from(span).ok().filter(|span| *span <= WAIT_MAX).ok_or_else(wrong)
}
