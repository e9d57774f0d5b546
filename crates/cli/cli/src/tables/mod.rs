//! Tables for the terminal. The columns are aligned. On a narrow terminal they are shortened, or each
//! row becomes a block of lines.
//!
//! [`table`] and [`table_narrowed`] return text; [`screen`] draws on the whole terminal. This module
//! must not know the meaning of the rows.

pub mod screen;

use mote_api::harmless;

/// A column of text that would be cut to fewer characters than this is left out instead.
const CUT_MIN: usize = 16;

/// The width of the terminal on standard output; `None` if standard output is not a terminal.
fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Formats a table with two spaces between columns. Text from a function or a node cannot control the
/// terminal. If the table is wider than the terminal, every row becomes a block with one line per
/// column, so that nothing is cut and no row wraps.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    table_within(head, rows, terminal_columns())
}

/// Formats a table for a terminal of this many columns.
fn table_within(head: &[&str], rows: &[Vec<String>], columns: Option<usize>) -> String {
    let clean: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in &clean {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let whole = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    if columns.is_some_and(|columns| whole > columns) {
        return blocks(head, &clean);
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(&widths) {
            text.push_str(&format!("{cell:<width$}  "));
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in &clean {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// One step in shortening a table that is wider than the terminal.
#[derive(Debug, Clone, Copy)]
pub enum Narrow {
    /// Leave out this column.
    Drop(usize),
    /// Cut the end of the text in this column, or leave the column out if little would remain.
    Cut(usize),
}

/// Formats a table and shortens it, in the order of `steps`, until it fits the terminal. If it still
/// does not fit, it has the form of [`table`].
pub fn table_narrowed(head: &[&str], rows: &[Vec<String>], steps: &[Narrow]) -> String {
    narrowed_within(head, rows, steps, terminal_columns())
}

fn narrowed_within(
    head: &[&str],
    rows: &[Vec<String>],
    steps: &[Narrow],
    columns: Option<usize>,
) -> String {
    let Some(columns) = columns else { return table_within(head, rows, None) };
    let mut rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| harmless(cell)).collect()).collect();
    let mut kept: Vec<usize> = (0..head.len()).collect();
    for step in steps {
        let width_of = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at)).map(String::as_str);
            cells.chain([head[at]]).map(|cell| cell.chars().count()).max().unwrap_or(0) + 2
        };
        let whole: usize = kept.iter().map(|at| width_of(*at)).sum();
        // The last column has no spaces after it.
        let excess = whole.saturating_sub(2).saturating_sub(columns);
        if excess == 0 {
            break;
        }
        match *step {
            Narrow::Cut(at) if width_of(at) >= excess + 2 + CUT_MIN => {
                let room = width_of(at) - 2 - excess;
                for cell in rows.iter_mut().filter_map(|row| row.get_mut(at)) {
                    if cell.chars().count() > room {
                        *cell = cell.chars().take(room - 2).chain("..".chars()).collect();
                    }
                }
            }
            Narrow::Cut(at) | Narrow::Drop(at) => kept.retain(|one| *one != at),
        }
    }
    let head: Vec<&str> = kept.iter().map(|at| head[*at]).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| kept.iter().filter_map(|at| row.get(*at).cloned()).collect())
        .collect();
    table_within(&head, &rows, Some(columns))
}

/// Formats each row as a block: the first cell, then a line for every other column that is not empty.
fn blocks(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = head.iter().skip(1).map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        text.push_str(row.first().map_or("", String::as_str));
        text.push('\n');
        for (name, cell) in head.iter().zip(row).skip(1).filter(|(_, cell)| *cell != "-") {
            text.push_str(&format!("  {name:<width$}  {cell}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_the_terminal() {
        let rows = vec![vec!["thermo".to_owned(), "3".to_owned(), "-".to_owned()]];
        let head = ["NAME", "REQUESTS", "P50"];
        let table = "NAME    REQUESTS  P50\nthermo  3         -\n";
        assert_eq!(table_within(&head, &rows, None), table);
        assert_eq!(table_within(&head, &rows, Some(21)), table);
        let blocks = "thermo\n  REQUESTS  3\n";
        assert_eq!(table_within(&head, &rows, Some(20)), blocks);
        assert_eq!(table_within(&head, &[], Some(5)), "");
    }

    #[test]
    fn columns_are_given_up_until_a_table_fits() {
        let cells = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![cells(&["thermo", "3", "0", "stopped (idle) 3 s ago"])];
        let head = ["NAME", "READY", "DRAINING", "LAST CHANGE"];
        let steps = [Narrow::Drop(2), Narrow::Cut(3)];
        for (columns, expected) in [
            (
                None,
                "NAME    READY  DRAINING  LAST CHANGE\nthermo  3      0         stopped (idle) 3 s ago\n",
            ),
            (
                Some(47),
                "NAME    READY  DRAINING  LAST CHANGE\nthermo  3      0         stopped (idle) 3 s ago\n",
            ),
            (Some(46), "NAME    READY  LAST CHANGE\nthermo  3      stopped (idle) 3 s ago\n"),
            (Some(31), "NAME    READY  LAST CHANGE\nthermo  3      stopped (idle)..\n"),
            (Some(30), "NAME    READY\nthermo  3\n"),
            (Some(8), "thermo\n  READY  3\n"),
        ] {
            assert_eq!(narrowed_within(&head, &rows, &steps, columns), expected, "{columns:?}");
        }
    }
}
