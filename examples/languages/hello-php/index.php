<?php
// PHP's own server runs this file for each request; this needs the package php-cli.
header('content-type: text/plain');
$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
if ($path === '/upper') {
    echo strtoupper(file_get_contents('php://input'));
} else {
    echo 'hello from PHP';
}
