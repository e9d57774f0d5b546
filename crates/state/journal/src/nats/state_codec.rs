//! The fields of operations on the state, and of their results.

use bytes::Bytes;
use mote_core::state::{Condition, Entry, Namespace, Operation, Outcome, StateError};

use crate::nats::codec::{Malformed, Reader, Writer};

pub(crate) fn write_namespace(writer: &mut Writer, namespace: &Namespace) {
    let (kind, name) = match namespace {
        Namespace::Function(name) => (0, name),
        Namespace::Shared(name) => (1, name),
    };
    writer.u8(kind);
    writer.text(name);
}

pub(crate) fn read_namespace(reader: &mut Reader) -> Result<Namespace, Malformed> {
    match reader.u8()? {
        0 => Ok(Namespace::Function(reader.text()?)),
        1 => Ok(Namespace::Shared(reader.text()?)),
        _ => Err(Malformed),
    }
}

fn write_condition(writer: &mut Writer, condition: Condition) {
    let (kind, version) = match condition {
        Condition::None => (0, 0),
        Condition::Absent => (1, 0),
        Condition::Version(version) => (2, version),
    };
    writer.u8(kind);
    writer.u64(version);
}

fn read_condition(reader: &mut Reader) -> Result<Condition, Malformed> {
    let kind = reader.u8()?;
    let version = reader.u64()?;
    match kind {
        0 => Ok(Condition::None),
        1 => Ok(Condition::Absent),
        2 => Ok(Condition::Version(version)),
        _ => Err(Malformed),
    }
}

pub(crate) fn write_operation(writer: &mut Writer, operation: &Operation) {
    match operation {
        Operation::Get { key } => {
            writer.u8(0);
            writer.text(key);
        }
        Operation::Put { key, value, condition, ttl_ms } => {
            writer.u8(1);
            writer.text(key);
            write_condition(writer, *condition);
            writer.optional(*ttl_ms);
            writer.bytes(value);
        }
        Operation::Delete { key, condition } => {
            writer.u8(2);
            writer.text(key);
            write_condition(writer, *condition);
        }
        Operation::List { prefix, after, limit, values } => {
            writer.u8(3);
            writer.text(prefix);
            writer.flag(after.is_some());
            writer.text(after.as_deref().unwrap_or_default());
            writer.u32(*limit);
            writer.flag(*values);
        }
        Operation::Increment { key, by, ttl_ms } => {
            writer.u8(4);
            writer.text(key);
            writer.i64(*by);
            writer.optional(*ttl_ms);
        }
    }
}

pub(crate) fn read_operation(reader: &mut Reader) -> Result<Operation, Malformed> {
    Ok(match reader.u8()? {
        0 => Operation::Get { key: reader.text()? },
        1 => Operation::Put {
            key: reader.text()?,
            condition: read_condition(reader)?,
            ttl_ms: reader.optional()?,
            value: reader.bytes()?,
        },
        2 => Operation::Delete { key: reader.text()?, condition: read_condition(reader)? },
        3 => {
            let prefix = reader.text()?;
            let is_some = reader.flag()?;
            let after = reader.text()?;
            let limit = reader.u32()?;
            let values = reader.flag()?;
            Operation::List { prefix, after: is_some.then_some(after), limit, values }
        }
        4 => Operation::Increment {
            key: reader.text()?,
            by: reader.i64()?,
            ttl_ms: reader.optional()?,
        },
        _ => return Err(Malformed),
    })
}

fn write_entry(writer: &mut Writer, entry: &Entry) {
    writer.u64(entry.version);
    writer.optional(entry.expires_unix_ms);
    writer.bytes(&entry.value);
}

fn read_entry(reader: &mut Reader) -> Result<Entry, Malformed> {
    let version = reader.u64()?;
    let expires_unix_ms = reader.optional()?;
    // The value is copied, because a slice would keep the bytes of the whole frame in memory.
    let value = Bytes::copy_from_slice(&reader.bytes()?);
    Ok(Entry { value, version, expires_unix_ms })
}

pub(crate) fn write_result(writer: &mut Writer, result: &Result<Outcome, StateError>) {
    match result {
        Ok(Outcome::Entry(entry)) => {
            writer.u8(0);
            writer.list(entry.as_slice(), write_entry);
        }
        Ok(Outcome::Written { version }) => {
            writer.u8(1);
            writer.u64(*version);
        }
        Ok(Outcome::Deleted(was)) => {
            writer.u8(2);
            writer.flag(*was);
        }
        Ok(Outcome::Listed { entries, more }) => {
            writer.u8(3);
            writer.flag(*more);
            writer.list(entries, |writer, (key, entry)| {
                writer.text(key);
                write_entry(writer, entry);
            });
        }
        Ok(Outcome::Counted { version, value }) => {
            writer.u8(4);
            writer.u64(*version);
            writer.i64(*value);
        }
        Err(StateError::Conflict { version }) => {
            writer.u8(5);
            writer.u64(*version);
        }
        Err(StateError::Full(text)) => {
            writer.u8(6);
            writer.text(text);
        }
        Err(StateError::Invalid(text)) => {
            writer.u8(7);
            writer.text(text);
        }
        Err(StateError::Disk(text)) => {
            writer.u8(8);
            writer.text(text);
        }
    }
}

pub(crate) fn read_result(reader: &mut Reader) -> Result<Result<Outcome, StateError>, Malformed> {
    Ok(match reader.u8()? {
        0 => Ok(Outcome::Entry(reader.list(read_entry)?.pop())),
        1 => Ok(Outcome::Written { version: reader.u64()? }),
        2 => Ok(Outcome::Deleted(reader.flag()?)),
        3 => {
            let more = reader.flag()?;
            let entries = reader.list(|reader| Ok((reader.text()?, read_entry(reader)?)))?;
            Ok(Outcome::Listed { entries, more })
        }
        4 => Ok(Outcome::Counted { version: reader.u64()?, value: reader.i64()? }),
        5 => Err(StateError::Conflict { version: reader.u64()? }),
        6 => Err(StateError::Full(reader.text()?)),
        7 => Err(StateError::Invalid(reader.text()?)),
        8 => Err(StateError::Disk(reader.text()?)),
        _ => return Err(Malformed),
    })
}
