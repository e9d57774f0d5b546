//! The terminal's alternate screen, without echo. Dropping the screen restores the terminal.

use std::io::{self, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// The assumed columns and lines if the terminal does not report its size.
const SIZE_GUESS: (usize, usize) = (120, 40);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Quit,
    /// Shows or hides the instances.
    Instances,
    Other,
}

/// See the module's documentation.
pub struct Screen {
    before: Option<Termios>,
    keys: mpsc::Receiver<Key>,
}

impl Screen {
    /// Switches the terminal to the alternate screen. Keys are read on a separate thread, which ends
    /// with the process.
    pub fn open() -> io::Result<Self> {
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            // Signals stay enabled, so that Ctrl-C ends this command like any other.
            quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(stdin, OptionalActions::Now, &quiet)?;
        }
        let (sender, keys) = mpsc::channel(8);
        std::thread::spawn(move || {
            for byte in io::stdin().lock().bytes() {
                let key = match byte {
                    Ok(b'q' | 0x1b) | Err(_) => Key::Quit,
                    Ok(b'i' | b'\t') => Key::Instances,
                    Ok(_) => Key::Other,
                };
                if sender.blocking_send(key).is_err() {
                    return;
                }
            }
        });
        let screen = Self { before, keys };
        let mut out = io::stdout().lock();
        out.write_all(b"\x1b[?1049h\x1b[?25l")?;
        out.flush()?;
        Ok(screen)
    }

    /// Waits for the next key; `None` if the input has ended.
    pub async fn key(&mut self) -> Option<Key> {
        self.keys.recv().await
    }

    /// Shows `text`, cut to the size of the terminal. It is written at once, so that nothing flickers.
    /// The last line of `text` stays at the bottom, however long the rest is.
    pub fn draw(&mut self, text: &str) -> io::Result<()> {
        let size = tcgetwinsize(rustix::stdio::stdout()).ok().filter(|size| size.ws_col > 0);
        let (columns, lines) =
            size.map_or(SIZE_GUESS, |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        let mut out = io::stdout().lock();
        out.write_all(frame(text, columns, lines).as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l");
        let _ = out.flush();
        if let Some(before) = &self.before {
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before);
        }
    }
}

fn frame(text: &str, columns: usize, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let Some((last, rest)) = all.split_last() else { return String::new() };
    let mut frame = String::from("\x1b[H");
    for line in rest.iter().take(lines.saturating_sub(1)) {
        frame.extend(line.chars().take(columns));
        frame.push_str("\x1b[K\r\n");
    }
    frame.extend(last.chars().take(columns));
    frame.push_str("\x1b[K\x1b[J");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_terminal() {
        let text = frame("abcdef\n1\n2\n3\nkeys\n", 4, 3);
        assert_eq!(text, "\x1b[Habcd\x1b[K\r\n1\x1b[K\r\nkeys\x1b[K\x1b[J");
        assert_eq!(frame("", 4, 3), "");
    }
}
