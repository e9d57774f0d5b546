# A Sinatra application on Puma; this needs the packages ruby-sinatra and puma.
require "sinatra/base"

class Hello < Sinatra::Base
  set :environment, :production

  get "/" do
    content_type "text/plain"
    "hello from Ruby"
  end

  post "/upper" do
    content_type "text/plain"
    request.body.read.upcase
  end
end

run Hello
