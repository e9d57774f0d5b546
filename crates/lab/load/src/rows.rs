//! Single operations, for analysis with other programs.

use std::io::{self, Write};

use crate::{Nanos, Outcome, PHASES};

/// The maximum number of operations of a run that are kept. The first ones are kept, at about 80
/// bytes each.
pub const ROWS_MAX: usize = 4_000_000;

/// A measured operation. Its times are on `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub intended: Nanos,
    /// When a client began the operation.
    pub begun: Nanos,
    pub ended: Nanos,
    pub outcome: Outcome,
}

/// Writes rows as CSV. Each row has the times in nanoseconds, `answered` or the reason of the
/// failure, the bytes of the body, and the target's phases. The phases are empty if the target
/// reported none.
///
/// # Errors
/// The errors of `to`.
pub fn write_rows(rows: &[Row], to: &mut impl Write) -> io::Result<()> {
    write!(to, "intended_ns,begun_ns,ended_ns,outcome,bytes")?;
    for name in PHASES {
        write!(to, ",{name}_ns")?;
    }
    writeln!(to)?;
    for row in rows {
        write!(to, "{},{},{},", row.intended, row.begun, row.ended)?;
        match row.outcome {
            Outcome::Failed(failure) => writeln!(to, "{failure},0,,,,")?,
            Outcome::Answered { bytes, phases: None } => writeln!(to, "answered,{bytes},,,,")?,
            Outcome::Answered { bytes, phases: Some(phases) } => {
                let [queue, init, handover, invoke] = phases.0;
                writeln!(to, "answered,{bytes},{queue},{init},{handover},{invoke}")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, Phases};

    #[test]
    fn every_row_has_every_column() {
        let row = |outcome| Row { intended: 1, begun: 2, ended: 3, outcome };
        let rows = [
            row(Outcome::Answered { bytes: 5, phases: Some(Phases([6, 7, 8, 9])) }),
            row(Outcome::Answered { bytes: 5, phases: None }),
            row(Outcome::Failed(Failure::Http(500))),
        ];
        let mut text = Vec::new();
        write_rows(&rows, &mut text).expect("a Vec takes all");
        let text = String::from_utf8(text).expect("text");
        let expected = "\
intended_ns,begun_ns,ended_ns,outcome,bytes,queue_ns,init_ns,handover_ns,invoke_ns
1,2,3,answered,5,6,7,8,9
1,2,3,answered,5,,,,
1,2,3,status 500,0,,,,
";
        assert_eq!(text, expected);
    }
}
